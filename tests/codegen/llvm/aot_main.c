/* Run the model `tiny` from a C program: aot_main INPUT OUTPUT [PARAMETERS], files of raw elements.
 *
 * It runs twice with a workspace allocated by the call, twice with one of the program, and in two concurrent threads; all results must be
 * equal, and are written once.  With BESIDE defined the parameters are read from a file.
 */
#define _POSIX_C_SOURCE 200112L

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tiny.h"

#define PIXELS (3 * 16 * 16)
#define CLASSES 10
#define ROUNDS 50

struct result {
    float scores[CLASSES];
    int64_t class_[1];
};

struct job {
    struct tiny_inputs inputs;
    struct result expected;
    int own;
    int failures;
};

static const void *parameters;

static int run(const struct tiny_inputs *inputs, const struct tiny_outputs *outputs, void *workspace)
{
#ifdef BESIDE
    return tiny_run_with(parameters, inputs, outputs, workspace);
#else
    return tiny_run(inputs, outputs, workspace);
#endif
}

static int compute(const struct tiny_inputs *inputs, struct result *result, void *workspace)
{
    struct tiny_outputs outputs;
    memset(result, 0x5a, sizeof *result);
    outputs.scores = result->scores;
    outputs.class_ = result->class_;
    return run(inputs, &outputs, workspace);
}

static void *new_workspace(void)
{
    void *memory = NULL;
    if (posix_memalign(&memory, TINY_ALIGNMENT, TINY_WORKSPACE_BYTES) != 0) {
        exit(20);
    }
    memset(memory, 0xff, TINY_WORKSPACE_BYTES);
    return memory;
}

static int differs(const struct result *a, const struct result *b)
{
    return memcmp(a->scores, b->scores, sizeof a->scores) != 0 || a->class_[0] != b->class_[0];
}

static void *repeat(void *argument)
{
    struct job *job = argument;
    void *workspace = job->own ? new_workspace() : NULL;
    int i;
    for (i = 0; i < ROUNDS; i++) {
        struct result result;
        if (compute(&job->inputs, &result, workspace) != TINY_OK || differs(&result, &job->expected)) {
            job->failures++;
        }
    }
    free(workspace);
    return NULL;
}

static int in_threads(const struct tiny_inputs *inputs, const struct result *expected)
{
    pthread_t threads[2];
    struct job jobs[2];
    int i, failures = 0;
    for (i = 0; i < 2; i++) {
        jobs[i].inputs = *inputs;
        jobs[i].expected = *expected;
        jobs[i].own = i;
        jobs[i].failures = 0;
        if (pthread_create(&threads[i], NULL, repeat, &jobs[i]) != 0) {
            exit(21);
        }
    }
    for (i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        failures += jobs[i].failures;
    }
    return failures;
}

static int refusals(const struct tiny_inputs *inputs, char *workspace)
{
    struct result result, untouched;
    struct tiny_inputs bad = *inputs;
    struct tiny_outputs none = {NULL, NULL};
    int failures = 0;
    failures += compute(inputs, &result, workspace + 8) != TINY_MISALIGNED;
    memset(&untouched, 0x5a, sizeof untouched);
    failures += differs(&result, &untouched);
    failures += run(NULL, &none, workspace) != TINY_NULL_POINTER;
    failures += run(inputs, NULL, workspace) != TINY_NULL_POINTER;
    failures += run(inputs, &none, workspace) != TINY_NULL_POINTER;
    bad.x = NULL;
    failures += compute(&bad, &result, workspace) != TINY_NULL_POINTER;
    bad.x = (const float *)(const void *)((const char *)(const void *)inputs->x + 2);
    failures += compute(&bad, &result, workspace) != TINY_MISALIGNED;
    return failures;
}

static void *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    void *data = NULL;
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        exit(22);
    }
    *size = (size_t)ftell(file);
    rewind(file);
    if (posix_memalign(&data, TINY_ALIGNMENT, *size) != 0 || fread(data, 1, *size, file) != *size) {
        exit(23);
    }
    fclose(file);
    return data;
}

int main(int argc, char **argv)
{
    struct tiny_inputs inputs;
    struct result results[4];
    void *workspace;
    size_t size;
    FILE *out;
    int i;

    if (argc < 3 || tiny_signature() != TINY_SIGNATURE || tiny_workspace_bytes() != TINY_WORKSPACE_BYTES) {
        return 2;
    }
    if (tiny_num_inputs() != TINY_NUM_INPUTS || tiny_num_outputs() != TINY_NUM_OUTPUTS) {
        return 3;
    }
#ifdef BESIDE
    {
        char *file = read_file(argv[3], &size);
        parameters = tiny_parameters(file, size);
        if (parameters == NULL || tiny_parameters(file, size - 1) != NULL || tiny_parameters(NULL, size) != NULL) {
            return 4;
        }
        file[20] ^= 1; /* of the digest */
        if (tiny_parameters(file, size) != NULL) {
            return 5;
        }
    }
#else
    (void)parameters;
#endif
    inputs.x = read_file(argv[1], &size);
    if (size != PIXELS * sizeof(float)) {
        return 6;
    }
    workspace = new_workspace();
    for (i = 0; i < 4; i++) {
        if (compute(&inputs, &results[i], i < 2 ? NULL : workspace) != TINY_OK || differs(&results[i], &results[0])) {
            return 7;
        }
    }
    if (refusals(&inputs, workspace) != 0) {
        return 8;
    }
    if (in_threads(&inputs, &results[0]) != 0) {
        return 9;
    }
    out = fopen(argv[2], "wb");
    if (out == NULL || fwrite(results[0].scores, sizeof(float), CLASSES, out) != CLASSES ||
        fwrite(results[0].class_, sizeof(int64_t), 1, out) != 1 || fclose(out) != 0) {
        return 10;
    }
    return 0;
}
