#define FOREBAY_KERNEL forebay_checksum_avx512
#include "base/checksum_kernel.inc"
