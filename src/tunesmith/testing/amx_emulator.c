/* Emulate Intel AMX in the SIGILL handler of a Linux process, on x86-64 processors without AMX.

   Source of encodings, semantics and exceptions: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, and chapter
   "Intel AMX instruction set reference" of Intel's Architecture Instruction Set Extensions Programming Reference.

   An illegal use ends the process as the processor would, by SIGILL (#UD) or SIGSEGV (#GP), after one line on stderr that names the rule.
   Instructions without AMX encodings go to the handler that was there before.  Memory faults are ordinary ones of the handler's accesses.
   Everything that the handler calls is async-signal-safe.  */

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#include <xmmintrin.h>

/* Palette 1, the only one that processors have. */
enum { TILES = 8, MAX_ROWS = 16, ROW_BYTES = 64, LANES = 16, CONFIG_BYTES = 64 };

/* Threads of the process that use tiles at the same time, at most. */
enum { THREADS = 1024 };

/* MXCSR: exceptions masked, round to nearest even, denormals are zero, flush to zero. */
enum { MXCSR = 0x1f80 | 0x0040 | 0x8000 };

enum kind {
  LDTILECFG, STTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILELOADDT1, TILESTORED,
  TDPBSSD, TDPBSUD, TDPBUSD, TDPBUUD, TDPBF16PS, TDPFP16PS,
  KINDS
};

static const char *const NAMES[KINDS] = {
  "ldtilecfg", "sttilecfg", "tilerelease", "tilezero", "tileloadd", "tileloaddt1", "tilestored",
  "tdpbssd", "tdpbsud", "tdpbusd", "tdpbuud", "tdpbf16ps", "tdpfp16ps",
};

/* Encodings: VEX.128.0F38.W0, `prefix` is the field pp (none, 66, F3, F2). */
enum form { MEMORY, SIB, NO_OPERAND, ONE_TILE, THREE_TILES };
static const struct { uint8_t opcode, prefix, form; } ENCODINGS[KINDS] = {
  [LDTILECFG] = {0x49, 0, MEMORY}, [STTILECFG] = {0x49, 1, MEMORY}, [TILERELEASE] = {0x49, 0, NO_OPERAND}, [TILEZERO] = {0x49, 3, ONE_TILE},
  [TILELOADD] = {0x4b, 3, SIB}, [TILELOADDT1] = {0x4b, 1, SIB}, [TILESTORED] = {0x4b, 2, SIB},
  [TDPBSSD] = {0x5e, 3, THREE_TILES}, [TDPBSUD] = {0x5e, 2, THREE_TILES}, [TDPBUSD] = {0x5e, 1, THREE_TILES},
  [TDPBUUD] = {0x5e, 0, THREE_TILES}, [TDPBF16PS] = {0x5c, 2, THREE_TILES}, [TDPFP16PS] = {0x5c, 3, THREE_TILES},
};

/* The tile state of one thread. */
struct state {
  atomic_int owner; /* id of the thread, 0 if there is none */
  uint8_t palette; /* 0: tiles are not configured */
  uint8_t start_row;
  uint8_t rows[TILES];
  uint16_t colsb[TILES];
  _Alignas(64) uint8_t data[TILES][MAX_ROWS][ROW_BYTES];
};

struct instruction {
  enum kind kind;
  int length; /* bytes */
  int tile[3]; /* fields reg, r/m and vvvv: destination and the two sources of products; the tile of others is the first */
  uint64_t address; /* of the first row, or of the configuration */
  uint64_t stride; /* bytes from row to row, modulo 2^64 */
};

/* 8 MB of address space; pages are allocated when a thread uses its state. */
static struct state states[THREADS];
static __thread struct state *mine __attribute__((tls_model("initial-exec")));
static atomic_ullong counts[KINDS];
static struct sigaction previous;

/* ---- Errors ---- */

struct line {
  char text[200];
  size_t size;
};

static void put(struct line *line, const char *text) {
  while (*text && line->size < sizeof line->text) line->text[line->size++] = *text++;
}

static void put_number(struct line *line, unsigned value) {
  char digits[12];
  int at = sizeof digits - 1;
  digits[at] = 0;
  do digits[--at] = (char)('0' + value % 10);
  while (value /= 10);
  put(line, digits + at);
}

/* End the process by the default action of the signal, after a line with the rule: each `#` in it is replaced by the next value. */
_Noreturn static void stop(int signal, enum kind kind, const char *rule, const unsigned *values) {
  struct line line = {.size = 0};
  put(&line, "AMX emulator: ");
  put(&line, NAMES[kind]);
  put(&line, ": ");
  for (char letter[2] = {0}; (letter[0] = *rule); rule++) {
    if (letter[0] == '#') put_number(&line, *values++);
    else put(&line, letter);
  }
  put(&line, signal == SIGSEGV ? " (#GP)\n" : " (#UD)\n");
  ssize_t written = write(STDERR_FILENO, line.text, line.size);
  (void)written;
  struct sigaction action = {.sa_handler = SIG_DFL};
  sigaction(signal, &action, NULL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
  raise(signal);
  _exit(128 + signal);
}

#define REQUIRE(signal, kind, condition, rule, ...) \
  do { if (!(condition)) stop(signal, kind, rule, (const unsigned[]){__VA_ARGS__, 0}); } while (0)

/* ---- State of threads ---- */

static void release(struct state *state) {
  state->palette = state->start_row = 0;
  memset(state->rows, 0, sizeof state->rows);
  memset(state->colsb, 0, sizeof state->colsb);
  memset(state->data, 0, sizeof state->data);
}

/* The state of this thread; new threads get an unused one, or that of a thread which has ended. */
static struct state *own_state(enum kind kind) {
  if (mine) return mine;
  int me = (int)syscall(SYS_gettid), process = getpid();
  for (int i = 0; i < THREADS; i++) {
    int owner = atomic_load(&states[i].owner);
    int lives = owner && owner != me && (syscall(SYS_tgkill, process, owner, 0) == 0 || errno != ESRCH);
    if (lives || !atomic_compare_exchange_strong(&states[i].owner, &owner, me)) continue;
    release(&states[i]);
    return mine = &states[i];
  }
  REQUIRE(SIGILL, kind, 0, "more than # threads use tiles, a limit of the emulator", THREADS);
  return NULL;
}

/* A child process has its own thread ids. */
static void after_fork(void) {
  if (mine) atomic_store(&mine->owner, (int)syscall(SYS_gettid));
}

/* ---- Decoder ---- */

/* Number of a general-purpose register in an encoding -> its place in the signal's context. */
static const int REGISTERS[16] = {
  REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI, REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15,
};

static int64_t displacement(const uint8_t **at, int bytes) {
  int32_t value = 0;
  if (bytes == 1) value = (int8_t)**at;
  if (bytes == 4) memcpy(&value, *at, 4);
  *at += bytes;
  return value;
}

/* Decode the address whose ModRM byte is at `at`: base + displacement, and the scaled index as the stride.
   Returns the first byte after it.  `registers` are those of the context, of which RIP is the start of the instruction. */
static const uint8_t *decode_address(const uint8_t *start, const uint8_t *at, int x, int b, const greg_t *registers, struct instruction *out) {
  uint8_t modrm = *at++;
  int mode = modrm >> 6, base = modrm & 7, relative = 0;
  out->address = out->stride = 0;
  if (base == 4) {
    uint8_t sib = *at++;
    int index = (sib >> 3 & 7) | x << 3;
    base = sib & 7;
    if (index != 4) out->stride = (uint64_t)registers[REGISTERS[index]] << (sib >> 6);
  } else if (mode == 0 && base == 5) {
    relative = 1;
  }
  int no_base = mode == 0 && base == 5;
  if (!no_base) out->address = (uint64_t)registers[REGISTERS[base | b << 3]];
  out->address += (uint64_t)displacement(&at, no_base || mode == 2 ? 4 : mode);
  if (relative) out->address += (uint64_t)(uintptr_t)start + (uint64_t)(at - start);
  return at;
}

/* The instruction at `start`.  Returns 0 if it is none of AMX. */
static int decode(const uint8_t *start, const greg_t *registers, struct instruction *out) {
  if (start[0] != 0xc4) return 0;
  int r = !(start[1] & 0x80), x = !(start[1] & 0x40), b = !(start[1] & 0x20);
  int w = start[2] >> 7, vvvv = ~start[2] >> 3 & 15, l = start[2] >> 2 & 1, prefix = start[2] & 3;
  uint8_t opcode = start[3];
  if ((start[1] & 31) != 2 || w || l) return 0;
  uint8_t modrm = start[4];
  int memory = modrm >> 6 != 3, reg = modrm >> 3 & 7, rm = modrm & 7;
  for (int kind = 0; kind < KINDS; kind++) {
    int form = ENCODINGS[kind].form;
    if (ENCODINGS[kind].opcode != opcode || ENCODINGS[kind].prefix != prefix || memory != (form == MEMORY || form == SIB)) continue;
    if (form != THREE_TILES && vvvv) return 0;
    if ((form == MEMORY && reg) || (form == SIB && rm != 4) || (form == NO_OPERAND && (reg || rm)) || (form == ONE_TILE && rm)) return 0;
    *out = (struct instruction){.kind = (enum kind)kind, .tile = {reg | r << 3, rm | b << 3, vvvv}};
    const uint8_t *end = start + 5;
    if (memory) end = decode_address(start, start + 4, x, b, registers, out);
    out->length = (int)(end - start);
    /* Without an index the stride is 0; other addresses have none. */
    if (form == MEMORY) out->address += out->stride;
    return 1;
  }
  return 0;
}

/* ---- Configuration, loads and stores ---- */

static void load_config(struct state *state, const struct instruction *op) {
  uint8_t config[CONFIG_BYTES];
  memcpy(config, (const void *)(uintptr_t)op->address, sizeof config);
  if (config[0] == 0) {
    release(state);
    return;
  }
  REQUIRE(SIGSEGV, op->kind, config[0] == 1, "there is no palette #", config[0]);
  struct state next = {.palette = 1, .start_row = config[1]};
  for (unsigned i = 0; i < CONFIG_BYTES; i++) {
    int reserved = (i >= 2 && i < 16) || (i >= 32 && i < 48) || i >= 56;
    REQUIRE(SIGSEGV, op->kind, !reserved || !config[i], "the reserved byte # of the configuration is #, not 0", i, config[i]);
  }
  for (unsigned i = 0; i < TILES; i++) {
    unsigned rows = config[48 + i], colsb = config[16 + 2 * i] | config[17 + 2 * i] << 8;
    REQUIRE(SIGSEGV, op->kind, rows <= MAX_ROWS, "tmm# has # rows, more than 16", i, rows);
    REQUIRE(SIGSEGV, op->kind, colsb <= ROW_BYTES, "tmm# has # bytes a row, more than 64", i, colsb);
    REQUIRE(SIGSEGV, op->kind, !rows == !colsb, "tmm# has # rows and # bytes a row: one is 0, the other is not", i, rows, colsb);
    next.rows[i] = (uint8_t)rows;
    next.colsb[i] = (uint16_t)colsb;
  }
  release(state);
  state->palette = next.palette;
  state->start_row = next.start_row;
  memcpy(state->rows, next.rows, sizeof next.rows);
  memcpy(state->colsb, next.colsb, sizeof next.colsb);
}

static void store_config(const struct state *state, const struct instruction *op) {
  uint8_t config[CONFIG_BYTES] = {state->palette, state->start_row};
  memcpy(config + 16, state->colsb, sizeof state->colsb);
  memcpy(config + 48, state->rows, sizeof state->rows);
  memcpy((void *)(uintptr_t)op->address, config, sizeof config);
}

static void require_tile(const struct state *state, enum kind kind, int tile) {
  unsigned t = (unsigned)tile;
  REQUIRE(SIGILL, kind, state->palette, "tiles are not configured, tmm# was used", t);
  REQUIRE(SIGILL, kind, t < TILES, "tmm# is beyond the palette, which ends with tmm7", t);
  REQUIRE(SIGILL, kind, state->rows[t], "tmm# is not configured: it has 0 rows", t);
}

/* Copy the rows of a tile from or to memory.  A memory fault leaves the row in start_row, from which the instruction starts again. */
static void move_rows(struct state *state, const struct instruction *op, int store) {
  int tile = op->tile[0];
  require_tile(state, op->kind, tile);
  unsigned rows = state->rows[tile], colsb = state->colsb[tile], t = (unsigned)tile;
  REQUIRE(SIGILL, op->kind, colsb % 4 == 0, "tmm# has # bytes a row, no multiple of 4", t, colsb);
  REQUIRE(SIGILL, op->kind, state->start_row < rows, "the start row # is not below the # rows of tmm#", state->start_row, rows, t);
  if (!store) memset(state->data[tile][state->start_row], 0, (size_t)(MAX_ROWS - state->start_row) * ROW_BYTES);
  for (; state->start_row < rows; state->start_row++) {
    void *memory = (void *)(uintptr_t)(op->address + state->start_row * op->stride);
    uint8_t *row = state->data[tile][state->start_row];
    if (store) memcpy(memory, row, colsb);
    else memcpy(row, memory, colsb);
    atomic_signal_fence(memory_order_seq_cst);
  }
  state->start_row = 0;
}

/* ---- Products ---- */

static float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint16_t half_at(const uint8_t *row, int element) {
  uint16_t bits;
  memcpy(&bits, row + 2 * element, sizeof bits);
  return bits;
}

static float bfloat16_at(const uint8_t *row, int element) { return from_bits((uint32_t)half_at(row, element) << 16); }

/* Denormals of float16 are kept: they are normal numbers of float32. */
static float float16_at(const uint8_t *row, int element) {
  uint32_t bits = half_at(row, element), sign = bits >> 15 << 31, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
  if (exponent == 31) return from_bits(sign | 0x7f800000 | fraction << 13);
  if (exponent) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
  float magnitude = (float)fraction * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

/* C + A B with pairs of 16-bit numbers: two chains of fused multiply-adds from 0, of even and of odd elements; their sum is added to C. */
__attribute__((noinline)) static void
multiply_floats(uint8_t (*c)[ROW_BYTES], uint8_t (*a)[ROW_BYTES], uint8_t (*b)[ROW_BYTES], int m, int n, int k, float (*at)(const uint8_t *, int)) {
  float wide[MAX_ROWS][2][LANES] = {0};
  for (int y = 0; y < k; y++)
    for (int x = 0; x < n; x++)
      for (int odd = 0; odd < 2; odd++) wide[y][odd][x] = at(b[y], 2 * x + odd);
  for (int i = 0; i < m; i++) {
    float even[LANES] = {0}, odd[LANES] = {0}, sum[LANES];
    for (int y = 0; y < k; y++) {
      float a0 = at(a[i], 2 * y), a1 = at(a[i], 2 * y + 1);
      for (int x = 0; x < LANES; x++) even[x] = __builtin_fmaf(a0, wide[y][0][x], even[x]);
      for (int x = 0; x < LANES; x++) odd[x] = __builtin_fmaf(a1, wide[y][1][x], odd[x]);
    }
    memcpy(sum, c[i], sizeof sum);
    for (int x = 0; x < LANES; x++) {
      float pair = even[x] + odd[x];
      sum[x] = sum[x] + pair;
    }
    memset(c[i], 0, ROW_BYTES);
    memcpy(c[i], sum, (size_t)n * 4);
  }
}

/* C + A B with groups of four bytes, modulo 2^32. */
__attribute__((noinline)) static void
multiply_bytes(uint8_t (*c)[ROW_BYTES], uint8_t (*a)[ROW_BYTES], uint8_t (*b)[ROW_BYTES], int m, int n, int k, int signed_a, int signed_b) {
  int32_t wide[MAX_ROWS][4][LANES] = {0};
  for (int y = 0; y < k; y++)
    for (int x = 0; x < n; x++)
      for (int q = 0; q < 4; q++) wide[y][q][x] = signed_b ? (int8_t)b[y][4 * x + q] : b[y][4 * x + q];
  for (int i = 0; i < m; i++) {
    uint32_t sum[LANES];
    memcpy(sum, c[i], sizeof sum);
    for (int y = 0; y < k; y++)
      for (int q = 0; q < 4; q++) {
        int32_t factor = signed_a ? (int8_t)a[i][4 * y + q] : a[i][4 * y + q];
        for (int x = 0; x < LANES; x++) sum[x] += (uint32_t)(factor * wide[y][q][x]);
      }
    memset(c[i], 0, ROW_BYTES);
    memcpy(c[i], sum, (size_t)n * 4);
  }
}

static void multiply(struct state *state, const struct instruction *op) {
  enum kind kind = op->kind;
  unsigned d = (unsigned)op->tile[0], s = (unsigned)op->tile[1], t = (unsigned)op->tile[2];
  REQUIRE(SIGILL, kind, d != s && d != t && s != t, "the tiles tmm#, tmm#, tmm# are not three different ones", d, s, t);
  for (int i = 0; i < 3; i++) {
    require_tile(state, kind, op->tile[i]);
    unsigned tile = (unsigned)op->tile[i], colsb = state->colsb[tile];
    REQUIRE(SIGILL, kind, colsb % 4 == 0, "tmm# has # bytes a row, no multiple of 4", tile, colsb);
  }
  unsigned m = state->rows[d], n = state->colsb[d] / 4u, k = state->rows[t], k_a = state->colsb[s] / 4u, n_b = state->colsb[t] / 4u;
  REQUIRE(SIGILL, kind, n == n_b, "bytes a row differ: # in tmm#, # in tmm#", 4 * n, d, 4 * n_b, t);
  REQUIRE(SIGILL, kind, m == state->rows[s], "rows differ: # in tmm#, # in tmm#", m, d, state->rows[s], s);
  REQUIRE(SIGILL, kind, k == k_a, "a quarter of the bytes a row of tmm#, #, is not the rows of tmm#, #", s, k_a, t, k);
  uint8_t(*c)[ROW_BYTES] = state->data[d], (*a)[ROW_BYTES] = state->data[s], (*b)[ROW_BYTES] = state->data[t];
  if (kind == TDPBF16PS || kind == TDPFP16PS) {
    unsigned saved = _mm_getcsr();
    _mm_setcsr(MXCSR);
    __asm__ volatile("" ::: "memory");
    if (kind == TDPBF16PS) multiply_floats(c, a, b, (int)m, (int)n, (int)k, bfloat16_at);
    else multiply_floats(c, a, b, (int)m, (int)n, (int)k, float16_at);
    __asm__ volatile("" ::: "memory");
    _mm_setcsr(saved);
  } else {
    multiply_bytes(c, a, b, (int)m, (int)n, (int)k, kind == TDPBSSD || kind == TDPBSUD, kind == TDPBSSD || kind == TDPBUSD);
  }
  memset(c[m], 0, (MAX_ROWS - m) * ROW_BYTES);
  state->start_row = 0;
}

/* ---- The handler ---- */

static void execute(const struct instruction *op) {
  struct state *state = own_state(op->kind);
  switch (op->kind) {
    case LDTILECFG: load_config(state, op); break;
    case STTILECFG: store_config(state, op); break;
    case TILERELEASE: release(state); break;
    case TILEZERO:
      require_tile(state, op->kind, op->tile[0]);
      memset(state->data[op->tile[0]], 0, sizeof state->data[0]);
      state->start_row = 0;
      break;
    case TILELOADD:
    case TILELOADDT1: move_rows(state, op, 0); break;
    case TILESTORED: move_rows(state, op, 1); break;
    default: multiply(state, op);
  }
  atomic_fetch_add_explicit(&counts[op->kind], 1, memory_order_relaxed);
}

static void handle(int signal, siginfo_t *info, void *context) {
  int saved_errno = errno;
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  struct instruction op;
  if (info->si_code > 0 && decode((const uint8_t *)(uintptr_t)registers[REG_RIP], registers, &op)) {
    execute(&op);
    registers[REG_RIP] += op.length;
  } else {
    /* The earlier handler gets the signal when the instruction faults again, or when this handler returns. */
    sigaction(SIGILL, &previous, NULL);
    if (info->si_code <= 0) raise(signal);
  }
  errno = saved_errno;
}

/* ---- Interface for amx_emulator.py ---- */

/* Install the handler for the process.  Returns 0, or -1 with errno. */
int amx_emulator_install(void) {
  static int forks;
  if (!forks) {
    int code = pthread_atfork(NULL, NULL, after_fork);
    if (code) return errno = code, -1;
    forks = 1;
  }
  struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
  sigemptyset(&action.sa_mask);
  return sigaction(SIGILL, &action, &previous);
}

/* Restore the handler that `amx_emulator_install` replaced.  Returns 0, or -1 with errno. */
int amx_emulator_remove(void) { return sigaction(SIGILL, &previous, NULL); }

/* The name of an instruction in lower case, NULL if the number is none. */
const char *amx_emulator_name(int kind) { return kind >= 0 && kind < KINDS ? NAMES[kind] : NULL; }

/* How often the process has executed the instruction, in all threads. */
unsigned long long amx_emulator_count(int kind) { return kind >= 0 && kind < KINDS ? atomic_load(&counts[kind]) : 0; }
