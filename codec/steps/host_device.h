#pragma once

// Marks a codec step: one function that g++, nvcc and the fuzzers all compile. Empty outside nvcc.
//
// A header of steps includes only <cstddef>, <cstdint> and other steps.
#if defined(__CUDACC__)
#define FB_HOST_DEVICE __host__ __device__
#else
#define FB_HOST_DEVICE
#endif
