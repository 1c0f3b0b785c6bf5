"""Print the thread support of C files that stand alone, with OpenMP if the compiler has it, else on one thread."""

from __future__ import annotations

from tunesmith.runtime.thread_support import THREADS

STANDALONE = f"""\
#ifdef _OPENMP
#include <omp.h>
#include <stdatomic.h>
#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

/* The number of threads for a parallel loop, at most `most`; 0 in a child forked from a process that may have started threads, which fork
 * does not copy. */
static int {THREADS}(int most) {{
  const int wanted = omp_get_max_threads(), count = wanted < most ? wanted : most;
  if (count < 2) return 1;
#if defined(__unix__) || defined(__APPLE__)
  static atomic_int owner; /* the process that started threads, or 0 */
  int known = 0;
  const int process = (int)getpid();
  if (!atomic_compare_exchange_strong(&owner, &known, process) && known != process) return 0;
#endif
  return count;
}}

static void run_parallel(void (*body)(void *), void *context, int threads) {{
#pragma omp parallel num_threads(threads)
  body(context);
}}
#else
static int {THREADS}(int most) {{
  (void)most;
  return 1;
}}
static int omp_get_thread_num(void) {{ return 0; }}
static int omp_get_num_threads(void) {{ return 1; }}
static void run_parallel(void (*body)(void *), void *context, int threads) {{
  (void)threads;
  body(context);
}}
#endif"""
"""Definitions of what parallel loops call; see `runtime.thread_support` for the meaning."""
