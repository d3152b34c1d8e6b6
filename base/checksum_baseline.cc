#define FOREBAY_KERNEL forebay_checksum_baseline
#include "base/checksum_kernel.inc"
