#define FOREBAY_KERNEL forebay_checksum_avx2
#include "base/checksum_kernel.inc"
