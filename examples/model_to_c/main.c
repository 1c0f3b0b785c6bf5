/* Call the exported model.  The header is the documentation: names, types, shapes and bytes of all tensors. */

#include <stdio.h>

#include "net.h"

int main(void)
{
    float image[64];
    float probabilities[4];
    struct net_inputs inputs = {image};
    struct net_outputs outputs = {probabilities};

    /* The library and the header must belong together: a program that was built with another header must not call it. */
    if (net_signature() != NET_SIGNATURE) {
        fprintf(stderr, "libnet.so is not the library of net.h\n");
        return 1;
    }
    for (int i = 0; i < 64; i++)
        image[i] = (float)i / 64.0f;

    /* NULL: the call allocates NET_WORKSPACE_BYTES for intermediate tensors, and frees them. */
    int32_t status = net_run(&inputs, &outputs, NULL);
    if (status != NET_OK) {
        fprintf(stderr, "net_run: %d\n", (int)status);
        return 1;
    }
    for (int i = 0; i < 4; i++)
        printf("class %d: %.6f\n", i, probabilities[i]);
    return 0;
}
