/* Call a function of an exported library: call LIBRARY SYMBOL INPUT OUTPUT.
 *
 * INPUT has 64-bit integers: the number of arrays and of sizes; for each array its DLPack type code, bits, number of axes, bytes and extents,
 * followed by its bytes; then the sizes.  OUTPUT receives the bytes of all arrays after the call.
 *
 * The functions of TVM-FFI that the argument checker calls are defined here: an error is printed on standard error.  Exit status: 1 for an
 * error of the function, 2 if a byte behind an array was written, 3 if the library or a file cannot be read.
 */
#define _POSIX_C_SOURCE 200112L

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 256
#define CANARY 0xA5

typedef struct {
    const char *data;
    size_t size;
} Bytes;

typedef struct {
    int32_t type, padding;
    union {
        int64_t integer;
        void *pointer;
    } value;
} Any;

typedef struct {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} Tensor;

typedef int32_t Function(void *self, const Any *arguments, int32_t count, Any *result);

int32_t TVMFFIErrorCreate(const Bytes *kind, const Bytes *message, const Bytes *trace, void **error)
{
    (void)trace;
    fprintf(stderr, "%.*s: %.*s\n", (int)kind->size, kind->data, (int)message->size, message->data);
    *error = (void *)message;
    return 0;
}

void TVMFFIErrorSetRaised(void *error) { (void)error; }

int32_t TVMFFIObjectDecRef(void *object)
{
    (void)object;
    return 0;
}

const void *TVMFFIGetTypeInfo(int32_t type)
{
    static struct {
        int64_t head;
        Bytes key;
    } info = {0, {"object", 6}};
    (void)type;
    return &info;
}

static void *allocated(size_t size)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 64, size) != 0) {
        exit(3);
    }
    return memory;
}

static int64_t number(FILE *file)
{
    int64_t value;
    if (fread(&value, sizeof value, 1, file) != 1) {
        exit(3);
    }
    return value;
}

static Tensor *tensor(FILE *file, size_t *nbytes)
{
    Tensor *made = allocated(sizeof *made);
    memset(made, 0, sizeof *made);
    made->device_type = 1;
    made->lanes = 1;
    made->code = (uint8_t)number(file);
    made->bits = (uint8_t)number(file);
    made->ndim = (int32_t)number(file);
    *nbytes = (size_t)number(file);
    made->shape = allocated(sizeof(int64_t) * (size_t)(made->ndim + 1));
    for (int i = 0; i < made->ndim; i++) {
        made->shape[i] = number(file);
    }
    made->data = allocated(*nbytes + GUARD);
    memset(made->data, CANARY, *nbytes + GUARD);
    if (fread(made->data, 1, *nbytes, file) != *nbytes) {
        exit(3);
    }
    return made;
}

int main(int argc, char **argv)
{
    FILE *file = argc == 5 ? fopen(argv[3], "rb") : NULL;
    void *library = file == NULL ? NULL : dlopen(argv[1], RTLD_NOW);
    Function *function;
    if (library == NULL) {
        fprintf(stderr, "cannot load: %s\n", file == NULL ? "no input" : dlerror());
        return 3;
    }
    *(void **)&function = dlsym(library, argv[2]);
    if (function == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 3;
    }
    int32_t arrays = (int32_t)number(file), count = arrays + (int32_t)number(file);
    Any *arguments = allocated(sizeof(Any) * (size_t)(count + 1)), result;
    size_t *nbytes = allocated(sizeof(size_t) * (size_t)(arrays + 1));
    memset(arguments, 0, sizeof(Any) * (size_t)(count + 1));
    memset(&result, 0, sizeof result);
    for (int32_t i = 0; i < count; i++) {
        if (i < arrays) {
            arguments[i].type = 7; /* DLTensor * */
            arguments[i].value.pointer = tensor(file, &nbytes[i]);
        } else {
            arguments[i].type = 1; /* int */
            arguments[i].value.integer = number(file);
        }
    }
    if (function(NULL, arguments, count, &result) != 0) {
        return 1;
    }
    file = fopen(argv[4], "wb");
    if (file == NULL) {
        return 3;
    }
    for (int32_t i = 0; i < arrays; i++) {
        const unsigned char *data = ((Tensor *)arguments[i].value.pointer)->data;
        for (size_t k = 0; k < GUARD; k++) {
            if (data[nbytes[i] + k] != CANARY) {
                fprintf(stderr, "argument %d: byte %zu behind the array was written\n", (int)i, k);
                return 2;
            }
        }
        if (fwrite(data, 1, nbytes[i], file) != nbytes[i]) {
            return 3;
        }
    }
    return fclose(file) == 0 ? 0 : 3;
}
