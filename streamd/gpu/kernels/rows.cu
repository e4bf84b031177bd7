// Replaces rows of an array by index; each index occurs once. With deterministic algorithms torch's own indexing sorts the
// indices first, since one may occur twice. Every argument is eight bytes wide.
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
