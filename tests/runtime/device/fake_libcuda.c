/* A fake libcuda.so.1: two devices with host memory and synchronous calls, whose code is a list of toy kernels,
   "fake:scale,reverse,fault"; a list with "slow" takes long to load.  It refuses invalid calls as a driver does (no current context, unknown
   addresses, too much shared memory), counts live objects, so that tests detect leaks, and records the last launch. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201,
       INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700 };
enum { MEMORY, STREAMS, EVENTS, MODULES, POOLS, GRAPHS, KINDS };

typedef unsigned long long address;
typedef struct { int device; } context;
typedef struct { int is_module; char names[256]; } module;
typedef struct { module *of; char name[64]; int max_shared; } function;
typedef struct { int is_stream; } stream;
typedef struct { int recorded; struct timespec at; } event;
typedef struct { address start; size_t size; context *owner; } block;
typedef struct { int device; } pool;

static context contexts[2] = {{0}, {1}};
static block blocks[4096];
static int live[KINDS], sticky;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread context *stack[16];
static __thread int depth;

#define ENTER do { if (sticky) return sticky; if (!depth || !stack[depth - 1]) return INVALID_CONTEXT; } while (0)

static unsigned long long last[11];

int fake_live(int kind) { return live[kind]; }
int fake_depth(void) { return depth; }

/* Record of the last launch: grid, block, shared memory, stream, device, its first two pointers. */
void fake_last(unsigned long long *out) { memcpy(out, last, sizeof last); }

/* Register host memory as device memory. */
void fake_adopt(address start, size_t size) {
  pthread_mutex_lock(&lock);
  int at = 0;
  while (at < 4095 && blocks[at].start) at++;
  blocks[at] = (block){start, size, 0};
  pthread_mutex_unlock(&lock);
}

static void count_live(int kind, int change) {
  pthread_mutex_lock(&lock);
  live[kind] += change;
  pthread_mutex_unlock(&lock);
}

/* Whether a range is inside one block of this or of the other device. */
static int known(address start, size_t size) {
  int found = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < 4096; i++)
    if (blocks[i].start && blocks[i].start <= start && start + size <= blocks[i].start + blocks[i].size) found = 1;
  pthread_mutex_unlock(&lock);
  return found;
}

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : OK; }
int cuDriverGetVersion(int *version) { *version = 13000; return OK; }
int cuDeviceGetCount(int *n) { *n = 2; return OK; }
int cuDeviceGet(int *device, int index) { *device = index; return index < 0 || index > 1 ? INVALID_DEVICE : OK; }
int cuDeviceGetName(char *name, int size, int device) { snprintf(name, size, "Fake GPU %d", device); return OK; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)(device + 1) << 32; return OK; }

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  static const int values[][2] = {{1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {8, 49152}, {10, 32}, {12, 65536}, {13, 1980000}, {16, 132},
                                  {38, 62914560}, {75, 9}, {76, 0}, {97, 232448}};
  (void)device;
  for (size_t i = 0; i < sizeof values / sizeof *values; i++)
    if (values[i][0] == attribute) { *value = values[i][1]; return OK; }
  *value = 0;
  return OK;
}

int cuDevicePrimaryCtxRetain(context **made, int device) { *made = &contexts[device]; return sticky; }
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return OK; }
int cuCtxGetCurrent(context **current) { *current = depth ? stack[depth - 1] : 0; return OK; }
int cuCtxSetCurrent(context *current) { if (!depth) depth = 1; stack[depth - 1] = current; return sticky; }
int cuCtxPushCurrent_v2(context *current) { if (depth == 16) return INVALID_VALUE; stack[depth++] = current; return OK; }
int cuCtxPopCurrent_v2(context **old) { if (!depth) return INVALID_CONTEXT; depth--; if (old) *old = stack[depth]; return OK; }
int cuCtxGetDevice(int *device) { ENTER; *device = stack[depth - 1]->device; return OK; }
int cuCtxGetApiVersion(context *c, unsigned *version) { (void)c; *version = 3020; return OK; }
int cuCtxSynchronize(void) { ENTER; return OK; }
int cuMemGetInfo_v2(size_t *unused, size_t *total) { ENTER; *total = (size_t)1 << 32; *unused = *total / 2; return OK; }

int cuMemAlloc_v2(address *made, size_t size) {
  ENTER;
  void *memory = 0;
  if (!size) return INVALID_VALUE;
  if (size > (size_t)1 << 34 || posix_memalign(&memory, 512, size)) return OUT_OF_MEMORY;
  pthread_mutex_lock(&lock);
  int at = 0;
  while (at < 4095 && blocks[at].start) at++;
  blocks[at] = (block){(address)(uintptr_t)memory, size, stack[depth - 1]};
  live[MEMORY]++;
  pthread_mutex_unlock(&lock);
  *made = (address)(uintptr_t)memory;
  return OK;
}

int cuMemFree_v2(address start) {
  ENTER;
  int code = INVALID_VALUE;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < 4096; i++)
    if (start && blocks[i].start == start) { blocks[i].start = 0; live[MEMORY]--; code = OK; break; }
  pthread_mutex_unlock(&lock);
  if (code == OK) free((void *)(uintptr_t)start);
  return code;
}

int cuMemPoolCreate(pool **made, const int *properties) {
  if (properties[0] != 1 || properties[2] != 1 || properties[3] < 0 || properties[3] > 1) return INVALID_VALUE;
  for (int i = 4; i < 22; i++)
    if (properties[i]) return INVALID_VALUE;
  *made = calloc(1, sizeof **made);
  (*made)->device = properties[3];
  count_live(POOLS, 1);
  return OK;
}
int cuMemPoolSetAttribute(pool *p, int attribute, void *value) { return p && attribute == 4 && *(uint64_t *)value ? OK : INVALID_VALUE; }
int cuMemPoolDestroy(pool *p) { free(p); count_live(POOLS, -1); return OK; }
int cuMemAllocFromPoolAsync(address *made, size_t size, pool *p, stream *s) {
  (void)s; ENTER;
  return p->device == stack[depth - 1]->device ? cuMemAlloc_v2(made, size) : INVALID_VALUE;
}
int cuMemFreeAsync(address start, stream *s) { (void)s; return cuMemFree_v2(start); }

int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t n, stream *s) {
  (void)s; ENTER;
  if (!known(to, n)) return INVALID_VALUE;
  memcpy((void *)(uintptr_t)to, from, n);
  return OK;
}
int cuMemcpyDtoHAsync_v2(void *to, address from, size_t n, stream *s) {
  (void)s; ENTER;
  if (!known(from, n)) return INVALID_VALUE;
  memcpy(to, (void *)(uintptr_t)from, n);
  return OK;
}
int cuMemcpyDtoDAsync_v2(address to, address from, size_t n, stream *s) {
  (void)s; ENTER;
  if (!known(to, n) || !known(from, n)) return INVALID_VALUE;
  memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, n);
  return OK;
}
int cuMemcpyPeerAsync(address to, context *c, address from, context *d, size_t n, stream *s) {
  if (!c || !d) return INVALID_CONTEXT;
  return cuMemcpyDtoDAsync_v2(to, from, n, s);
}

int cuStreamCreate(stream **made, unsigned flags) {
  (void)flags; ENTER;
  *made = calloc(1, sizeof **made);
  (*made)->is_stream = 1;
  count_live(STREAMS, 1);
  return OK;
}
int cuStreamDestroy_v2(stream *s) { ENTER; free(s); count_live(STREAMS, -1); return OK; }
int cuStreamSynchronize(stream *s) { ENTER; return (uintptr_t)s > 2 && !s->is_stream ? INVALID_HANDLE : OK; }

int cuStreamWaitEvent(stream *s, event *e, unsigned flags) {
  (void)flags; ENTER;
  return ((uintptr_t)s > 2 && !s->is_stream) || !e->recorded ? INVALID_HANDLE : OK;
}

int cuEventCreate(event **made, unsigned flags) {
  (void)flags; ENTER;
  *made = calloc(1, sizeof **made);
  count_live(EVENTS, 1);
  return OK;
}
int cuEventDestroy_v2(event *e) { ENTER; free(e); count_live(EVENTS, -1); return OK; }
int cuEventRecord(event *e, stream *s) { (void)s; ENTER; e->recorded = 1; clock_gettime(CLOCK_MONOTONIC, &e->at); return OK; }
int cuEventSynchronize(event *e) { ENTER; return e->recorded ? OK : INVALID_HANDLE; }
int cuEventQuery(event *e) { ENTER; return e->recorded ? OK : INVALID_HANDLE; }
int cuEventElapsedTime(float *ms, event *a, event *b) {
  ENTER;
  if (!a->recorded || !b->recorded) return INVALID_HANDLE;
  *ms = (float)((b->at.tv_sec - a->at.tv_sec) * 1e3 + (b->at.tv_nsec - a->at.tv_nsec) * 1e-6);
  return OK;
}
int cuEventElapsedTime_v2(float *ms, event *a, event *b) { return cuEventElapsedTime(ms, a, b); }

int cuModuleLoadDataEx(module **made, const void *image, unsigned n, void *options, void **values) {
  (void)n; (void)options; (void)values; ENTER;
  if (strncmp(image, "fake:", 5)) return INVALID_IMAGE;
  if (strstr(image, "slow")) usleep(20000);
  *made = calloc(1, sizeof **made);
  (*made)->is_module = 1;
  snprintf((*made)->names, sizeof (*made)->names, "%s", (const char *)image + 5);
  count_live(MODULES, 1);
  return OK;
}
int cuModuleLoadData(module **made, const void *image) { return cuModuleLoadDataEx(made, image, 0, 0, 0); }
int cuModuleUnload(module *m) { ENTER; free(m); count_live(MODULES, -1); return OK; }

int cuModuleGetFunction(function **made, module *m, const char *name) {
  ENTER;
  char names[256];
  snprintf(names, sizeof names, "%s", m->names);
  for (char *rest = names, *word; (word = strsep(&rest, ",\n"));)
    if (*word && !strcmp(word, name)) {
      *made = calloc(1, sizeof **made);
      (*made)->of = m;
      (*made)->max_shared = 49152;
      snprintf((*made)->name, sizeof (*made)->name, "%s", name);
      return OK;
    }
  return NOT_FOUND;
}
int cuFuncSetAttribute(function *f, int attribute, int value) {
  ENTER;
  if (attribute != 8 || value > 232448) return INVALID_VALUE;
  f->max_shared = value;
  return OK;
}
int cuFuncGetAttribute(int *value, int attribute, function *f) {
  ENTER;
  *value = attribute == 8 ? f->max_shared : attribute == 0 ? 1024 : 0;
  return OK;
}
int cuFuncGetParamInfo(function *f, size_t index, size_t *offset, size_t *size) {
  ENTER;
  if (index >= (strcmp(f->name, "fault") ? 2u : 0u)) return INVALID_VALUE;
  *offset = index * 8;
  if (size) *size = 8;
  return OK;
}

int cuLaunchKernel(function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, stream *s,
                   void **params, void **extra) {
  ENTER;
  unsigned blocks_of = gx * gy * gz, threads = bx * by * bz;
  if (!blocks_of || !threads || threads > 1024 || bz > 64 || (int)shared > f->max_shared) return INVALID_VALUE;
  if (!strcmp(f->name, "fault")) { sticky = ILLEGAL_ADDRESS; return OK; }
  address *packed = !params && extra && extra[0] == (void *)1 ? (address *)extra[1] : 0;
  address from = packed ? packed[0] : *(address *)params[0], to = packed ? packed[1] : *(address *)params[1];
  pthread_mutex_lock(&lock);
  unsigned long long now[11] = {gx, gy, gz, bx, by, bz, shared, (uintptr_t)s, stack[depth - 1]->device, from, to};
  memcpy(last, now, sizeof last);
  pthread_mutex_unlock(&lock);
  if (!known(from, (size_t)blocks_of * threads * 4) || !known(to, (size_t)blocks_of * threads * 4)) { sticky = ILLEGAL_ADDRESS; return OK; }
  float *x = (float *)(uintptr_t)from, *y = (float *)(uintptr_t)to;
  if (!strcmp(f->name, "scale"))
    for (unsigned i = 0; i < blocks_of * threads; i++) y[i] = 2 * x[i];
  else if (!strcmp(f->name, "reverse") && shared < threads * 4)
    sticky = ILLEGAL_ADDRESS;
  else if (!strcmp(f->name, "reverse"))
    for (unsigned b = 0; b < blocks_of; b++)
      for (unsigned t = 0; t < threads; t++) y[b * threads + t] = x[b * threads + threads - 1 - t];
  return OK;
}

/* Graphs of kernels, each of which depends on the one before. */
typedef struct { function *f; unsigned grid[3], block[3], shared; void **params, **extra; void *kern, *ctx; } node_params;
typedef struct graph_node { node_params p; address values[8]; struct graph_node *next; struct graph *of; } graph_node;
typedef struct graph { graph_node *first, *final; int nodes; } graph;
typedef struct { graph *of; node_params p[64]; address values[64][8]; } graph_exec;

int cuGraphCreate(graph **made, unsigned flags) {
  ENTER;
  if (flags) return INVALID_VALUE;
  *made = calloc(1, sizeof **made);
  count_live(GRAPHS, 1);
  return OK;
}
static void node_values(const node_params *p, address *values) {
  size_t offset, size;
  for (size_t i = 0; i < 8 && cuFuncGetParamInfo(p->f, i, &offset, &size) == OK; i++) values[i] = *(address *)p->params[i];
}
int cuGraphAddKernelNode_v2(graph_node **made, graph *g, graph_node **before, size_t n, const node_params *p) {
  ENTER;
  if (n > 1 || (n && before[0] != g->final) || (!n && g->nodes) || p->extra || g->nodes == 64) return INVALID_VALUE;
  graph_node *node = calloc(1, sizeof *node);
  node->p = *p;
  node->of = g;
  node_values(p, node->values);
  if (g->final) g->final->next = node;
  else g->first = node;
  g->final = node;
  g->nodes++;
  *made = node;
  return OK;
}
int cuGraphInstantiateWithFlags(graph_exec **made, graph *g, unsigned long long flags) {
  ENTER;
  if (flags) return INVALID_VALUE;
  graph_exec *e = *made = calloc(1, sizeof *e);
  e->of = g;
  int i = 0;
  for (graph_node *node = g->first; node; node = node->next, i++) e->p[i] = node->p, memcpy(e->values[i], node->values, sizeof node->values);
  count_live(GRAPHS, 1);
  return OK;
}
int cuGraphExecKernelNodeSetParams_v2(graph_exec *e, graph_node *node, const node_params *p) {
  ENTER;
  int i = 0;
  for (graph_node *x = e->of->first; x && x != node; x = x->next) i++;
  if (i >= e->of->nodes || strcmp(e->p[i].f->name, p->f->name)) return INVALID_VALUE;
  e->p[i] = *p;
  node_values(p, e->values[i]);
  return OK;
}
int cuGraphLaunch(graph_exec *e, stream *s) {
  ENTER;
  for (int i = 0; i < e->of->nodes; i++) {
    node_params *p = &e->p[i];
    void *params[8];
    for (int k = 0; k < 8; k++) params[k] = &e->values[i][k];
    int code = cuLaunchKernel(p->f, p->grid[0], p->grid[1], p->grid[2], p->block[0], p->block[1], p->block[2], p->shared, s, params, 0);
    if (code) return code;
  }
  return OK;
}
int cuGraphExecDestroy(graph_exec *e) { ENTER; free(e); count_live(GRAPHS, -1); return OK; }
int cuGraphDestroy(graph *g) {
  ENTER;
  for (graph_node *node = g->first, *next; node; node = next) next = node->next, free(node);
  free(g);
  count_live(GRAPHS, -1);
  return OK;
}

static const struct { int code; const char *name, *text; } errors[] = {
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
};
int cuGetErrorName(int code, const char **text) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) { *text = errors[i].name; return OK; }
  return INVALID_VALUE;
}
int cuGetErrorString(int code, const char **text) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) { *text = errors[i].text; return OK; }
  return INVALID_VALUE;
}

int cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags, int *status) {
  static const char *const suffixes[] = {"_v2", ""};
  (void)version; (void)flags;
  *found = 0;
  for (int i = 0; i < 2 && !*found; i++) {
    char name[128];
    snprintf(name, sizeof name, "%s%s", symbol, suffixes[i]);
    Dl_info self;
    dladdr((void *)cuInit, &self);
    void *library = dlopen(self.dli_fname, RTLD_NOLOAD | RTLD_NOW);
    *found = dlsym(library, name);
    dlclose(library);
  }
  if (status) *status = *found ? 0 : 1;
  return *found ? OK : NOT_FOUND;
}
int cuGetProcAddress(const char *symbol, void **found, int version, uint64_t flags) {
  return cuGetProcAddress_v2(symbol, found, version, flags, 0);
}
