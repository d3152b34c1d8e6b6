#include "tiers/eviction_policy.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace forebay {

absl::StatusOr<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(absl::string_view name) {
  if (name == "lru") return MakeLruPolicy();
  if (name == "s3fifo") return MakeS3FifoPolicy();
  return absl::InvalidArgumentError(
      absl::StrCat("unknown eviction policy '", name, "': known are lru, s3fifo"));
}

}  // namespace forebay
