/* The scan for one dtype in every vector width, and the two functions that Python calls. kernels.c includes this file once per
 * KIND (dtype). */

#if !FORMAT && defined(__AVX__) /* AVX has streaming stores; vectors in half precision are too small to benefit from them */
#define STREAMS 1
#else
#define STREAMS 0
#endif

#if MAX_VECTOR >= 8
#define WIDTH 8
#define N(name) JOIN(JOIN(name, KIND), 8)
#include "vectors.h"
#include "scan.h"
#include "undefine_vectors.h"
#endif

#if MAX_VECTOR >= 4
#define WIDTH 4
#define N(name) JOIN(JOIN(name, KIND), 4)
#include "vectors.h"
#include "scan.h"
#include "undefine_vectors.h"
#endif

#define WIDTH 2
#define N(name) JOIN(JOIN(name, KIND), 2)
#include "vectors.h"
#include "scan.h"
#include "undefine_vectors.h"

#if !COMPLEX
#define WIDTH 1
#define N(name) JOIN(JOIN(name, KIND), 1)
#include "vectors.h"
#include "scan.h"
#include "undefine_vectors.h"
#endif

#define K(name) JOIN(name, KIND)

/* task `index`: one row and one range of columns; the last range includes the remaining columns */
static void K(scan_task)(const scan_job *j, long index, int backward) {
    const long ranges = j->columns / j->width > 1 ? j->columns / j->width : 1, row = index / ranges, range = index % ranges;
    const long n0 = range * j->width, n1 = range == ranges - 1 ? j->columns : n0 + j->width, size = sizeof(STORAGE);
    const scan_row r = {
        j->a + (row / j->group * j->a_row) * size,
        j->b + row * j->b_row * size,
        j->h0 ? j->h0 + row * j->h0_row * size : 0,
        j->grad + row * j->grad_row * size,
        j->h + row * j->h_row * size,
        j->z + row * j->h_row * size,
        j->g + row * j->h_row * size,
        j->da + row * j->h_row * size,
        j->dh0 ? j->dh0 + row * j->columns * size : 0,
        j->sum ? j->sum + row * j->columns : 0,
    };
    const long n = n1 - n0;
#if MAX_VECTOR >= 8
    if (n >= 8) JOIN(K(columns), 8)(j, &r, n0, n1, backward);
    else
#endif
#if MAX_VECTOR >= 4
    if (n >= 4) JOIN(K(columns), 4)(j, &r, n0, n1, backward);
    else
#endif
#if !COMPLEX
    if (n < 2) JOIN(K(columns), 1)(j, &r, n0, n1, backward);
    else
#endif
    JOIN(K(columns), 2)(j, &r, n0, n1, backward);
#if STREAMS
    if (j->stream) _mm_sfence(); /* make streamed results visible to the thread that waits for this task */
#endif
}

static void K(states_task)(const void *job, long index) { K(scan_task)(job, index, 0); }

static void K(adjoints_task)(const void *job, long index) { K(scan_task)(job, index, 1); }

/* p: the lengths and addresses of `scan_job` in the order of scan/compiled.py. Returns nonzero if memory ran out */
static long K(scan)(const int64_t *p, int backward, parallel_call parallel, long threads) {
    const long size = sizeof(STORAGE), reverse = p[5];
    scan_job j = {
        .rows = p[0], .length = p[1], .columns = p[2], .group = p[3], .ltv = p[4], .activation = p[6], .need_da = p[7],
        .a_row = p[8], .a_step = p[9], .b_row = p[10], .b_step = p[11], .h_row = p[12], .h_step = p[13],
        .grad_row = p[14], .grad_step = p[15], .h0_row = p[16],
        .a = (const char *)p[17], .b = (const char *)p[18], .h0 = (const char *)p[19], .grad = (const char *)p[20],
        .h = (char *)p[21], .z = (char *)p[22], .g = (char *)p[23], .da = (char *)p[24], .dh0 = (char *)p[25],
    };
    /* ranges are as wide as possible, as long as each thread gets a task, because neighbouring columns share memory pages */
    long whole = j.columns / MAX_VECTOR, wanted = (threads + j.rows - 1) / (j.rows ? j.rows : 1), blocks = wanted > 1 ? whole / wanted : whole;
    if (blocks > MAX_COLUMNS / 2 / MAX_VECTOR) blocks = MAX_COLUMNS / 2 / MAX_VECTOR;
    const long even = blocks > MAX_BLOCK ? blocks / MAX_BLOCK * MAX_BLOCK : blocks; /* use whole blocks if this does not increase the number of ranges */
    if (even && whole / even == whole / blocks) blocks = even;
    const long line = LINE / MAX_VECTOR / size;
    if (blocks > line && line) blocks -= blocks % line;
    j.width = blocks > 1 ? blocks * MAX_VECTOR : MAX_VECTOR;
    const long ranges = j.columns / j.width > 1 ? j.columns / j.width : 1;
    j.tile = j.columns * size % LINE ? SHORT_TILE : TILE;
    /* streamed results must be whole cache lines, because a partial line would be read before it is written */
    const long results = (long)(backward ? j.g : j.h) | (long)j.da;
    const int whole_lines = (results | j.columns * size | j.width * size) % LINE == 0;
    if (STREAMS && !j.activation && j.rows * j.length * j.columns * size >= STREAM_BYTES) {
        if (whole_lines) j.stream = WHOLE_LINES;
        else if (ranges == 1) j.stream = PARTIAL_LINES, j.tile = SHORT_TILE; /* with one range, a tile consists of whole lines, except at its ends */
    }
    if (reverse) {
        const long last = j.length - 1;
        if (j.ltv) j.a += last * j.a_step * size, j.da += last * j.h_step * size;
        j.b += last * j.b_step * size, j.grad += last * j.grad_step * size;
        j.h += last * j.h_step * size, j.z += last * j.h_step * size, j.g += last * j.h_step * size;
        j.a_step = -j.a_step, j.b_step = -j.b_step, j.h_step = -j.h_step, j.grad_step = -j.grad_step;
    }
    const int sums = backward && j.need_da && !j.ltv;
    if (sums && !(j.sum = malloc((j.rows * j.columns + 1) * sizeof(double)))) return 1;
    run_tasks(backward ? K(adjoints_task) : K(states_task), &j, j.columns ? j.rows * ranges : 0, parallel, threads);
    if (sums) {
        COMPUTE *da = (COMPUTE *)j.da;
        for (long group = 0; group * j.group < j.rows; group++)
            for (long n = 0; n < j.columns; n++) {
                double total = 0;
                for (long row = group * j.group; row < (group + 1) * j.group; row++) total += j.sum[row * j.columns + n];
                da[group * j.columns + n] = (COMPUTE)total;
            }
        free(j.sum);
    }
    return 0;
}

long JOIN(stablessm_states, KIND)(const int64_t *p, parallel_call parallel, long threads) { return K(scan)(p, 0, parallel, threads); }

long JOIN(stablessm_adjoints, KIND)(const int64_t *p, parallel_call parallel, long threads) { return K(scan)(p, 1, parallel, threads); }

#undef K
#undef KIND
#undef STORAGE
#undef COMPUTE
#undef NARROW
#undef FORMAT
#undef COMPLEX
#undef ACTIVATED
#undef STREAMS
