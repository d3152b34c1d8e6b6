#include "tests/sim/ledger.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/oracle/page_check.h"
#include "tests/oracle/page_stamp.h"

namespace forebay::testing {
namespace {

constexpr uint32_t kPageTokens = 4;

SimNamespace Make(std::string name, std::string tenant, const KvLayout& layout) {
  SimNamespace ns;
  ns.name = std::move(name);
  ns.tenant = std::move(tenant);
  ns.spec.tenant = ns.tenant;
  ns.spec.model = "model";
  ns.spec.model_revision = "1";
  ns.spec.layout = layout;
  ns.spec.position_encoding = "rope:theta=10000";
  ns.parts = layout.Parts();
  size_t offset = 0;
  for (const PartSpec& part : ns.parts) {
    ns.part_offsets.push_back(offset);
    offset += part.raw_bytes;
  }
  ns.stamp_tenant = PageStamp::TenantOf(ns.name);
  const std::string secret = SecretOfTenant(ns.tenant);
  ns.root = ns.spec.RootKey(AsBytes(secret.data(), secret.size()));
  return ns;
}

KvLayout Layout(uint32_t head_dim, DType dtype) {
  return KvLayout::Uniform(/*layer_count=*/4, /*kv_heads=*/2, head_dim, dtype, kPageTokens,
                           /*layers_per_part=*/2);
}

PageStamp StampOf(const SimNamespace& ns, const PageKey& key, uint32_t part, uint32_t writer,
                  uint64_t attempt) {
  PageStamp stamp;
  stamp.tenant = ns.stamp_tenant;
  std::copy_n(key.bytes.begin(), stamp.key.size(), stamp.key.begin());
  stamp.part = part;
  stamp.writer = writer;
  stamp.attempt = attempt;
  return stamp;
}

}  // namespace

std::string SecretOfTenant(const std::string& tenant) { return absl::StrCat("secret of ", tenant); }

std::vector<SimNamespace> MakeSimNamespaces() {
  std::vector<SimNamespace> all;
  all.push_back(Make("alpha/bf16", "alpha", Layout(16, DType::kBf16)));
  all.push_back(Make("beta/bf16", "beta", Layout(16, DType::kBf16)));
  all.push_back(Make("alpha/f16", "alpha", Layout(16, DType::kFp16)));
  all.push_back(Make("alpha/large", "alpha", Layout(72, DType::kBf16)));
  return all;
}

std::vector<PageKey> SimNamespace::Chain(uint32_t chain) const {
  const uint32_t pages = 8 + (chain * 11) % (kSimChainPagesMax - 7);
  const uint32_t shared = std::min(pages, 6 + 4 * (chain % 4)) * kPageTokens;
  std::vector<uint32_t> tokens(pages * kPageTokens);
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = i < shared ? (chain % 3) * 100'000 + i : (10 + chain) * 100'000 + i;
  }
  return PageKeysOf(root, tokens, kPageTokens);
}

Ledger::Ledger(std::vector<SimNamespace> namespaces) : namespaces_(std::move(namespaces)) {}

uint64_t Ledger::BeginAttempt(size_t ns, const std::vector<PageKey>& keys) {
  for (const PageKey& key : keys) known_.emplace(ns, key);
  attempts_.emplace_back();
  return attempts_.size() - 1;
}

void Ledger::Fill(size_t ns, const PageKey& key, uint32_t writer, uint64_t attempt,
                  MutableBytes page) const {
  const SimNamespace& in = namespaces_[ns];
  for (uint32_t part = 0; part < in.parts.size(); ++part) {
    FillPage(page.subspan(in.part_offsets[part], in.parts[part].raw_bytes),
             StampOf(in, key, part, writer, attempt));
  }
}

std::string Ledger::Fault(size_t ns, const PageKey& key, uint32_t part, Bytes bytes,
                          Nanos since) const {
  const SimNamespace& in = namespaces_[ns];
  const PageFinding finding =
      CheckPage(bytes, PageExpectation::AnyAttempt(StampOf(in, key, part, 0, 0)));
  if (!finding.ok()) return finding.ToString();
  const uint64_t attempt = finding.found->attempt;
  if (attempt >= attempts_.size()) return absl::StrCat("attempt ", attempt, " never was");
  if (attempts_[attempt].ended < since) {
    return absl::StrCat("stale: attempt ", attempt, " had ended before that node started");
  }
  return {};
}

}  // namespace forebay::testing
