/* The kernels for CPUs. build.py compiles this file once per instruction set; library.py loads the result and calls it.
 *
 * The code uses GCC's vector types, which clang also supports. No vector is wider than a register, because GCC keeps a wider
 * vector in memory, which makes the kernels two to six times slower. The order of every sum is independent of the width of
 * registers, and a*b+c is rounded once on processors that have an instruction for it. So two libraries whose instruction sets
 * differ only in the width of registers give the same bits. Work is split into tasks. Each thread takes the next task from a
 * shared counter. No result depends on which thread runs a task. */

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

/* hash of the sources from which this library was built; library.py compares it with the hash of the installed sources */
const char stablessm_source[] = STABLESSM_SOURCE;

/* ---- threads ---- */

/* `parallel` is GOMP_parallel of the OpenMP runtime that PyTorch has loaded. The threads of that runtime do the work. If
 * `parallel` is NULL, the calling thread does all the work. */
typedef void (*parallel_call)(void (*)(void *), void *, unsigned, unsigned);

typedef struct {
    void (*task)(const void *job, long index);
    const void *job;
    long count, next;
} task_list;

static void run_task_list(void *given) {
    task_list *list = given;
    for (;;) {
        long index = __atomic_fetch_add(&list->next, 1, __ATOMIC_RELAXED);
        if (index >= list->count) return;
        list->task(list->job, index);
    }
}

static void run_tasks(void (*task)(const void *, long), const void *job, long count, parallel_call parallel, long threads) {
    task_list list = {task, job, count, 0};
    if (parallel && threads > 1 && count > 1) parallel(run_task_list, &list, threads < count ? threads : count, 0);
    else run_task_list(&list);
}

#if defined(__AVX512F__)
#define LANES 16 /* number of float32 values in a register */
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

/* ---- the scan ---- */

enum { IDENTITY, TANH, GELU, SILU, RELU };

#define MAX_VECTOR (LANES / 2) /* number of elements in the widest vector, which is one register of doubles */
#define MAX_BLOCK 8 /* maximum number of vectors in a block, limited by the registers; no result depends on it */
#define LINE 64 /* size of a cache line, in bytes */
#define TILE 64 /* length of a tile, in steps */
/* length of a tile, in steps, if rows are not whole cache lines; short, so that the L1 cache joins the parts of a line */
#define SHORT_TILE 16
#define MAX_COLUMNS 512 /* maximum number of columns in a task */
#define PREFETCH_STEPS 24 /* number of steps to prefetch ahead, because rows are too far apart for the hardware prefetcher */
/* prefetch into the L2 cache, because the L1 cache can wait for only about 24 lines at a time, and can hold only a few rows
 * whose addresses end in the same bits */
#define PREFETCH(p) __builtin_prefetch(p, 0, 2)
/* minimum size of a result that bypasses the caches, in bytes; its cache lines are written without being read first, and
 * displace no other data */
#define STREAM_BYTES (10L << 20)

/* how a result bypasses the caches: not at all, written from registers, or written from a tile of SHORT_TILE steps */
enum { NO_STREAM, WHOLE_LINES, PARTIAL_LINES };

/* copy bytes; whole cache lines bypass the caches */
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

/* Lengths are in elements of the storage type (for complex types, in real numbers). `x_step` is the distance from one step of x
 * to the next in the order of the scan. `x_row` is the distance from one row of x to the next. */
typedef struct {
    long rows, length, columns, group; /* group: number of rows that share one a */
    long ltv, need_da, activation, width, tile, stream;
    long a_row, a_step, b_row, b_step, h_row, h_step, grad_row, grad_step, h0_row;
    const char *a, *b, *h0, *grad;
    char *h, *z, *g, *da, *dh0;
    double *sum; /* sums of da per row, (rows, columns) */
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
#include "scan_dtype.h"

#define KIND f64
#define STORAGE double
#define COMPUTE double
#define NARROW 0
#define FORMAT 0
#define COMPLEX 0
#define ACTIVATED 0
#include "scan_dtype.h"

#define KIND c64
#define STORAGE float
#define COMPUTE float
#define NARROW 1
#define FORMAT 0
#define COMPLEX 1
#define ACTIVATED 0
#include "scan_dtype.h"

#define KIND c128
#define STORAGE double
#define COMPUTE double
#define NARROW 0
#define FORMAT 0
#define COMPLEX 1
#define ACTIVATED 0
#include "scan_dtype.h"

#define KIND bf16
#define STORAGE uint16_t
#define COMPUTE float
#define NARROW 1
#define FORMAT 1
#define COMPLEX 0
#define ACTIVATED 0
#include "scan_dtype.h"

#ifdef __FLT16_MAX__ /* the compiler has _Float16 */
#define KIND f16
#define STORAGE uint16_t
#define COMPUTE float
#define NARROW 1
#define FORMAT 2
#define COMPLEX 0
#define ACTIVATED 0
#include "scan_dtype.h"
#endif

/* ---- convolutions ---- */

#define CONVOLUTION_TILE 8 /* number of sums in a tile */
#define CONVOLUTION_STEP 4 /* divides the tile; a tile, this many inputs and a factor fit into 16 registers */
#define CONVOLUTION_BLOCK 64 /* number of products that are summed first; a multiple of the step */
#define CONVOLUTION_ROOM(length) (((length) + CONVOLUTION_TILE - 1) / CONVOLUTION_TILE * CONVOLUTION_TILE)
#define CONVOLUTION_SUMS 64 /* number of sums over rows that are computed together */

#define KIND f32
#define REAL float
#include "convolution.h"

#define KIND f64
#define REAL double
#include "convolution.h"

/* ---- telemetry ---- */

#include "row.h"

/* ---- the gate of the MLP ---- */

#include "gate.h"

/* ---- small residual blocks ---- */

#include "products.h"
#include "layer_norm.h"
#include "small_blocks.h"
