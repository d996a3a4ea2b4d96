/* The kernels of a CPU, built by build.py once per instruction set and found by library.py, which tells what each call means.
 *
 * Vectors are GCC's, which clang has, too; their widths are fixed here and a*b+c is one rounding wherever the processor has such an
 * instruction, so that two libraries whose instruction sets differ only in the width of registers give the same bits. Work is cut
 * into tasks that threads take from a counter; no value depends on who takes what. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(v, mask, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
#define SHUFFLE(v, mask, ...) __builtin_shuffle(v, (mask){__VA_ARGS__})
#endif

/* what this library was made from; library.py compares */
const char stablessm_source[] = STABLESSM_SOURCE;

/* ---- threads ---- */

/* `parallel`: GOMP_parallel of the OpenMP runtime that PyTorch has loaded, whose threads then do the work; NULL: the caller alone */
typedef void (*parallel_call)(void (*)(void *), void *, unsigned, unsigned);

typedef struct {
    void (*task)(const void *job, long index);
    const void *job;
    long count, next;
} task_list;

static void work(void *given) {
    task_list *list = given;
    for (;;) {
        long index = __atomic_fetch_add(&list->next, 1, __ATOMIC_RELAXED);
        if (index >= list->count) return;
        list->task(list->job, index);
    }
}

static void run_tasks(void (*task)(const void *, long), const void *job, long count, parallel_call parallel, long threads) {
    task_list list = {task, job, count, 0};
    if (parallel && threads > 1 && count > 1) parallel(work, &list, threads < count ? threads : count, 0);
    else work(&list);
}

/* ---- the scan ---- */

enum { IDENTITY, TANH, GELU, SILU, RELU };

#define TOP 8 /* numbers of the widest vector: a cache line of doubles */
#ifdef __AVX512F__ /* vectors of a block: as many as there are registers for, which no value depends on */
#define MOST 8
#else
#define MOST 4
#endif
#define LINE 64 /* bytes */
#define TILE 64 /* steps */
#define PARTS 16 /* steps of a tile where rows are no whole lines: what its blocks write to one line meets in the first cache */
#define COLUMNS 512 /* of one task, at most */
#define AHEAD 24 /* steps by which memory is asked for before its turn: rows lie further apart than processors look */
/* into the second cache: the first waits for some 24 lines at a time, and has no room for those of many rows whose addresses end alike */
#define ASK(p) __builtin_prefetch(p, 0, 2)
#define LARGE (10L << 20) /* bytes of a result that goes past the caches: its lines are not read first, nor is anything else pushed out */

enum { NO_STREAM, WHOLE_LINES, PARTS_OF_LINES }; /* how a result goes past the caches: from registers, or from a tile of PARTS steps */

/* a copy whose whole lines go past the caches */
static void stream_lines(const char *from, char *to, long bytes) {
#ifdef __AVX__
    long before = -(uintptr_t)to % LINE;
    if (before > bytes) before = bytes;
    memcpy(to, from, before);
    for (from += before, to += before, bytes -= before; bytes >= LINE; from += LINE, to += LINE, bytes -= LINE)
#ifdef __AVX512F__
        _mm512_stream_pd((double *)to, _mm512_loadu_pd((const double *)from));
#else
        for (int i = 0; i < 8; i += 4) _mm256_stream_pd((double *)to + i, _mm256_loadu_pd((const double *)from + i));
#endif
#endif
    memcpy(to, from, bytes);
}

/* lengths in elements of the storage type (complex: in real numbers); a step is from one step to the next in running order */
typedef struct {
    long rows, length, columns, group; /* group: rows that share one a */
    long ltv, need_da, activation, width, tile, stream;
    long a_row, a_step, b_row, b_step, h_row, h_step, grad_row, grad_step, h0_row;
    const char *a, *b, *h0, *grad;
    char *h, *z, *g, *da, *dh0;
    double *sum; /* of da per row, (rows, columns) */
} scan_job;

typedef struct {
    const void *a, *b, *h0, *grad;
    void *h, *z, *g, *da, *dh0;
    double *sum;
} scan_row;

#include "activations.h"

#define KIND f32
#define STORAGE float
#define COMPUTE float
#define NARROW 1
#define FORMAT 0
#define COMPLEX 0
#define ACTIVATED 1
#include "scan_kind.h"

#define KIND f64
#define STORAGE double
#define COMPUTE double
#define NARROW 0
#define FORMAT 0
#define COMPLEX 0
#define ACTIVATED 0
#include "scan_kind.h"

#define KIND c64
#define STORAGE float
#define COMPUTE float
#define NARROW 1
#define FORMAT 0
#define COMPLEX 1
#define ACTIVATED 0
#include "scan_kind.h"

#define KIND c128
#define STORAGE double
#define COMPUTE double
#define NARROW 0
#define FORMAT 0
#define COMPLEX 1
#define ACTIVATED 0
#include "scan_kind.h"

#define KIND bf16
#define STORAGE uint16_t
#define COMPUTE float
#define NARROW 1
#define FORMAT 1
#define COMPLEX 0
#define ACTIVATED 0
#include "scan_kind.h"

#ifdef __FLT16_MAX__ /* the compiler has _Float16 */
#define KIND f16
#define STORAGE uint16_t
#define COMPUTE float
#define NARROW 1
#define FORMAT 2
#define COMPLEX 0
#define ACTIVATED 0
#include "scan_kind.h"
#endif

/* ---- telemetry ---- */

#include "row.h"

/* ---- the gate of the MLP ---- */

#include "gated.h"

/* ---- halves of a block ---- */

#include "products.h"
#include "norm.h"
#include "halves.h"
