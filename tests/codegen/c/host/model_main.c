/* Run the model `net` from a C program: model_main INPUT OUTPUT [PARAMETERS], files of raw elements. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net.h"

static float image[NET_NUM_INPUTS * 3 * 16 * 16];
static float scores[2][10];

int main(int argc, char **argv)
{
    struct net_inputs inputs = {image};
    void *workspace = aligned_alloc(NET_ALIGNMENT, NET_WORKSPACE_BYTES + NET_ALIGNMENT - NET_WORKSPACE_BYTES % NET_ALIGNMENT);
    FILE *file = fopen(argv[1], "rb");
    if (argc < 3 || !file || fread(image, 1, sizeof image, file) != sizeof image || !workspace) {
        return 10;
    }
    fclose(file);
    if (net_signature() != NET_SIGNATURE || net_workspace_bytes() != NET_WORKSPACE_BYTES || net_num_outputs() != NET_NUM_OUTPUTS) {
        return 11;
    }
#ifdef BESIDE
    const void *parameters = net_load_parameters(argv[3]);
    if (!parameters || net_load_parameters(argv[1]) || net_load_parameters("/no/such/file")) {
        return 12;
    }
#define RUN(inputs, outputs, workspace) net_run_with(parameters, inputs, outputs, workspace)
#else
#define RUN(inputs, outputs, workspace) net_run(inputs, outputs, workspace)
#endif
    for (int k = 0; k < 2; ++k) {
        struct net_outputs outputs = {scores[k]};
        int status = RUN(&inputs, &outputs, k ? workspace : NULL);
        if (status != NET_OK) {
            return 20 + status;
        }
    }
    struct net_outputs none = {NULL}, odd = {(float *)((char *)scores + 1)};
    if (RUN(NULL, &none, NULL) != NET_NULL_POINTER || RUN(&inputs, &none, NULL) != NET_NULL_POINTER) {
        return 13;
    }
    if (RUN(&inputs, &odd, NULL) != NET_MISALIGNED) {
        return 14;
    }
    if (memcmp(scores[0], scores[1], sizeof scores[0]) != 0) {
        return 15;
    }
    file = fopen(argv[2], "wb");
    if (!file || fwrite(scores[0], 1, sizeof scores[0], file) != sizeof scores[0]) {
        return 16;
    }
    fclose(file);
#ifdef BESIDE
    net_free_parameters(parameters);
#endif
    free(workspace);
    return 0;
}
