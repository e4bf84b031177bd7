// Rows of an array are replaced at places, each place given once. Torch's own indexing sorts the places first where it must
// be deterministic, for one may be given twice. Every argument is eight bytes wide.
//
// One thread writes one of the `count` elements; a row has `width` of them.

typedef long long i64;
typedef unsigned char u8;

#define PUT_ROWS(name, element)                                                                               \
    extern "C" __global__ void name(element* to, const i64* place, const element* rows, i64 count, i64 width) { \
        const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;                                            \
        if (at < count) to[place[at / width] * width + at % width] = rows[at];                                \
    }

PUT_ROWS(put_words, i64)
PUT_ROWS(put_bytes, u8)
