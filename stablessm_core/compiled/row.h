/* One row of telemetry in one pass over weights, gradients and states: telemetry/one_pass.py writes the program, a list of what
 * comes next in the row, and says what each number is. Sums are made in float64, whose squares of single-precision numbers neither
 * overflow nor vanish, in an order that no number of threads changes. */

enum { COPY, NARROW, TAKE, RATIO, MAGNITUDE, POWER, LARGEST, ROW_NORMS, ROW_RATIOS, ROW_MAGNITUDES, NORMS, NONFINITE };
#define LARGEST_SQUARES 3.40282346638528859812e+38 /* beyond, the operations' sums of float32 are infinite: so are these */

enum { PIECES = 5, PART = 3, COLUMN = 4 }; /* numbers of an entry */

typedef double row_wide __attribute__((vector_size(64)));
typedef float row_narrow __attribute__((vector_size(32), aligned(4), may_alias));

static double row_squares(const float *p, long count) {
    row_wide a = {0}, b = {0};
    long i = 0;
    for (; i + 16 <= count; i += 16) {
        row_wide x = __builtin_convertvector(*(const row_narrow *)(p + i), row_wide);
        row_wide y = __builtin_convertvector(*(const row_narrow *)(p + i + 8), row_wide);
        a += x * x;
        b += y * y;
    }
    a += b;
    double sum = ((a[0] + a[4]) + (a[1] + a[5])) + ((a[2] + a[6]) + (a[3] + a[7]));
    for (; i < count; i++) sum += (double)p[i] * p[i];
    return sum;
}

/* NaN is larger than all */
INLINE double row_larger(double a, double b) { return b > a || b != b ? b : a; }

/* e^x of x <= 88 */
static float row_exp(float given) {
    double x = given;
    if (x != x) return given;
    if (x > 88) x = 88;
    if (x < -150) return 0;
    long k = (long)(x * 1.4426950408889634 + (x < 0 ? -0.5 : 0.5));
    double r = x - k * 6.93147180369123816490e-01 - k * 1.90821492927058770002e-10, sum = 1, scale;
    for (int n = 13; n; n--) sum = 1 + sum * r / n;
    uint64_t bits = (uint64_t)(k + 1023) << 52;
    memcpy(&scale, &bits, sizeof scale);
    return (float)(sum * scale);
}

typedef struct {
    const int64_t *pieces, *now;
    double *found;
} row_job;

/* of one stretch of a tensor: the largest sum of squares of a piece, and the sum of all */
static void row_task(const void *given, long index) {
    const row_job *job = given;
    const int64_t *t = job->pieces + PIECES * index, gradient = t[0], offset = t[1], count = t[2], piece = t[3];
    const float *p = (const float *)(intptr_t)job->now[gradient];
    double largest = 0, total = 0;
    if (p)
        for (long at = 0; at < count; at += piece) {
            double sum = row_squares(p + offset + at, count - at < piece ? count - at : piece);
            total += sum;
            largest = row_larger(largest, sum);
        }
    job->found[2 * index] = largest;
    job->found[2 * index + 1] = total;
}

/* of row i: of its weights, or of its gradients, which may be missing */
static float row_norm(const int64_t *list, const int64_t *now, long i, int gradient) {
    double sum = 0;
    for (long k = 0; k < list[0]; k++) {
        const int64_t *part = list + 1 + PART * k;
        const float *p = (const float *)(intptr_t)(!gradient ? part[0] : part[1] < 0 ? 0 : now[part[1]]);
        if (p) sum += row_squares(p + i * part[2], part[2]);
    }
    return sum > LARGEST_SQUARES ? __builtin_inff() : (float)__builtin_sqrt(sum);
}

static int row_finite(const uint32_t *p, long count) {
    typedef uint32_t bits __attribute__((vector_size(64)));
    bits some = {0}, x;
    uint32_t bad = 0;
    long i = 0;
    for (; i + 16 <= count; i += 16) {
        memcpy(&x, p + i, sizeof x);
        some |= (bits)((x & 0x7f800000) == 0x7f800000);
    }
    for (int lane = 0; lane < 16; lane++) bad |= some[lane];
    for (; i < count; i++) bad |= (p[i] & 0x7f800000) == 0x7f800000;
    return !bad;
}

/* p: buffer, cursor, rows of the buffer, columns, norm, now, columns' list and its length, pieces and their number, room for two
 * numbers of each, first piece of a gradient, parameters */
long stablessm_row(const int64_t *p, parallel_call parallel, long threads) {
    int64_t *cursor = (int64_t *)(intptr_t)p[1];
    float *out = (float *)(intptr_t)p[0] + *cursor * p[3];
    const int64_t *now = (const int64_t *)(intptr_t)p[5], *column = (const int64_t *)(intptr_t)p[6];
    const long count_of_columns = p[7], pieces = p[9], gradients = p[11], parameters = p[12];
    row_job job = {(const int64_t *)(intptr_t)p[8], now, (double *)(intptr_t)p[10]};
    run_tasks(row_task, &job, pieces, parallel, threads);
    for (long c = 0; c < count_of_columns; c++, column += COLUMN) {
        const long kind = column[0], count = column[1];
        const int64_t *list = (const int64_t *)(intptr_t)column[2];
        const float *a = (const float *)list;
        const float *b = column[3] < 0 ? NULL : (const float *)(intptr_t)now[column[3]];
        switch (kind) {
        case COPY: memcpy(out, a, count * sizeof *out); break;
        case NARROW:
            for (long i = 0; i < count; i++) out[i] = (float)((const double *)list)[i];
            break;
        case TAKE:
            if (b) memcpy(out, b, count * sizeof *out);
            else memset(out, 0, count * sizeof *out);
            break;
        case RATIO:
            for (long i = 0; i < count; i++) out[i] = __builtin_fabsf((b ? b[i] : 0) / a[i]);
            break;
        case MAGNITUDE:
            for (long i = 0; i < count; i++) out[i] = b ? __builtin_fabsf(b[i]) : 0;
            break;
        case POWER:
            for (long i = 0; i < count; i++) out[i] = row_exp(a[i]);
            break;
        case LARGEST:
            memset(out, 0, count * sizeof *out);
            if (b)
                for (long row = 0; row < now[column[3] + 1]; row++, b += count)
                    for (long i = 0; i < count; i++) {
                        float v = __builtin_fabsf(b[i]);
                        out[i] = v > out[i] || v != v ? v : out[i];
                    }
            break;
        case ROW_NORMS:
            for (long i = 0; i < count; i++) out[i] = row_norm(list, now, i, 0);
            break;
        case ROW_RATIOS:
            for (long i = 0; i < count; i++) out[i] = __builtin_fabsf(row_norm(list, now, i, 1) / row_norm(list, now, i, 0));
            break;
        case ROW_MAGNITUDES:
            for (long i = 0; i < count; i++) out[i] = row_norm(list, now, i, 1);
            break;
        case NORMS: { /* of each weight, then of each gradient; the norm of all gradients, and of all weights */
            double total[2] = {0, 0}, largest = 0;
            for (long i = 0, slot = 0; i < pieces; i++) {
                const int of_gradient = i >= gradients;
                double found = job.found[2 * i];
                if (!of_gradient && found > LARGEST_SQUARES) found = job.found[2 * i + 1] = __builtin_inf();
                total[of_gradient] += job.found[2 * i + 1];
                largest = row_larger(largest, found);
                if (i + 1 == pieces || job.pieces[PIECES * (i + 1) + 4] != slot) {
                    out[slot] = (float)__builtin_sqrt(largest);
                    largest = 0;
                    slot++;
                }
            }
            double norm = __builtin_sqrt(total[1]);
            *(double *)(intptr_t)p[4] = norm;
            out[2 * parameters] = (float)norm;
            out[2 * parameters + 1] = (float)__builtin_sqrt(total[0]);
            break;
        }
        case NONFINITE: /* the sum of the codes of what is not finite */
            out[0] = 0;
            for (long k = 0; k < list[0]; k++) {
                const int64_t *part = list + 1 + PART * k;
                if (!row_finite((const uint32_t *)(intptr_t)part[0], part[1])) out[0] += part[2];
            }
            break;
        }
        out += count;
    }
    *cursor = (*cursor + 1) % p[2];
    return 0;
}
