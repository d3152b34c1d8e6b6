#include "server/rpc/tenants.h"

#include "base/sha256.h"

namespace forebay {

absl::StatusOr<std::string> TenantOf(absl::Span<const TenantOptions> tenants,
                                     absl::string_view token) {
  if (tenants.empty()) return std::string(kDefaultTenant);
  const Sha256Digest hash = Sha256({AsBytes(token.data(), token.size())});
  const TenantOptions* found = nullptr;
  for (const TenantOptions& tenant : tenants) {
    // Every byte of every tenant is looked at: no early end tells how much of a guess was right.
    uint8_t difference = 0;
    for (size_t i = 0; i < hash.size(); ++i) {
      difference = static_cast<uint8_t>(difference | (hash[i] ^ tenant.token_hash[i]));
    }
    if (difference == 0) found = &tenant;
  }
  if (found == nullptr) return absl::UnauthenticatedError("no tenant has this token");
  return found->name;
}

}  // namespace forebay
