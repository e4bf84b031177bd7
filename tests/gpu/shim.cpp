// Runs CUDA C++ kernels on the CPU: blocks and threads are loops. Compiled with -DKERNELS="path" for the source to include.
#include <cstdint>
#include <cstring>
#include <utility>

#define __global__
#define __device__
struct Dim { unsigned x; };
static thread_local Dim threadIdx, blockIdx, blockDim;
static inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }

#include KERNELS

// Every argument of a kernel is eight bytes wide and is passed as an integer, which the ABI of this machine lets us do.
template <std::size_t... I>
static void call(void* kernel, const std::uint64_t* a, std::index_sequence<I...>) {
    reinterpret_cast<void (*)(decltype((void)I, std::uint64_t{})...)>(kernel)(a[I]...);
}
template <std::size_t N>
static void call_with(void* kernel, const std::uint64_t* args, int count) {
    if (count == static_cast<int>(N)) call(kernel, args, std::make_index_sequence<N>{});
    else if constexpr (N > 1) call_with<N - 1>(kernel, args, count);
}

extern "C" void launch(void* kernel, unsigned grid, unsigned block, const std::uint64_t* args, int count) {
    blockDim.x = block;
    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x) call_with<24>(kernel, args, count);
}
