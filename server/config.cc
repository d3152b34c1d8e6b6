#include "server/config.h"

#include <google/protobuf/text_format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "proto/host_id.h"
#include "tiers/dram/memory_limits.h"

namespace forebay {
namespace {

// A pool is a guest on its machine: an eighth of the memory, and no more than this unasked.
constexpr uint64_t kDramShareOfMemory = 8;
constexpr uint64_t kDramBytesDefaultMax = uint64_t{4} << 30;
constexpr size_t kSecretBytesMin = 16;

// Writes the default of every scalar field that is absent, so that `ShowConfig` leaves nothing to
// look up.
void SpellOut(google::protobuf::Message* message) {
  const google::protobuf::Reflection* reflection = message->GetReflection();
  const google::protobuf::Descriptor* descriptor = message->GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = descriptor->field(i);
    if (field->is_repeated()) continue;
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) {
      SpellOut(reflection->MutableMessage(message, field));
    } else if (field->has_default_value() && !reflection->HasField(*message, field)) {
      using google::protobuf::FieldDescriptor;
      switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_BOOL:
          reflection->SetBool(message, field, field->default_value_bool());
          break;
        case FieldDescriptor::CPPTYPE_UINT32:
          reflection->SetUInt32(message, field, field->default_value_uint32());
          break;
        case FieldDescriptor::CPPTYPE_UINT64:
          reflection->SetUInt64(message, field, field->default_value_uint64());
          break;
        case FieldDescriptor::CPPTYPE_STRING:
          reflection->SetString(message, field, field->default_value_string());
          break;
        default:
          break;
      }
    }
  }
}

// The secret itself or what its file holds, less one line end.
absl::StatusOr<std::string> SecretOf(const std::string& value, const std::string& file) {
  if (file.empty()) return value;
  std::ifstream in(file, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in.good() && !in.eof()) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", file));
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.size() < kSecretBytesMin) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, " holds ", text.size(), " bytes; at least ", kSecretBytesMin));
  }
  return text;
}

absl::StatusOr<std::vector<TenantOptions>> TenantsOf(const v1::PoolConfig& config) {
  std::vector<std::string> faults;
  std::vector<TenantOptions> tenants;
  std::set<Sha256Digest> tokens;
  for (const v1::Tenant& tenant : config.tenants()) {
    const absl::StatusOr<std::string> secret = SecretOf(tenant.secret(), tenant.secret_file());
    const absl::StatusOr<std::string> token = SecretOf(tenant.token(), tenant.token_file());
    if (!secret.ok()) {
      faults.push_back(absl::StrCat("tenant ", tenant.name(), ": ", secret.status().message()));
    }
    if (!token.ok()) {
      faults.push_back(absl::StrCat("tenant ", tenant.name(), ": ", token.status().message()));
    }
    if (!secret.ok() || !token.ok()) continue;
    TenantOptions& options = tenants.emplace_back();
    options.name = tenant.name();
    options.secret = *secret;
    options.token_hash = Sha256({AsBytes(token->data(), token->size())});
    if (!tokens.insert(options.token_hash).second) {
      faults.push_back(absl::StrCat("tenant ", tenant.name(), ": another has the same token"));
    }
  }
  if (!faults.empty()) return absl::InvalidArgumentError(absl::StrJoin(faults, "\n"));
  return tenants;
}

}  // namespace

MachineFacts MachineFacts::Read() {
  MachineFacts facts;
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) == 0) facts.host_name = name;
  const MemoryLimits limits = MemoryLimits::Read();
  facts.memory_bytes = std::min(limits.physical_bytes, limits.cgroup_bytes);
  facts.uid = getuid();
  if (const char* dir = std::getenv("XDG_RUNTIME_DIR"); dir != nullptr) facts.runtime_dir = dir;
  return facts;
}

void FillDefaults(const MachineFacts& machine, v1::PoolConfig* config) {
  if (!config->has_node()) {
    config->set_node(machine.host_name.empty() ? "node" : machine.host_name.substr(0, 64));
  }
  SpellOut(config);
  v1::Dram* dram = config->mutable_dram();
  if (!dram->has_capacity_bytes()) {
    const uint64_t wished =
        std::min(machine.memory_bytes / kDramShareOfMemory, kDramBytesDefaultMax);
    const uint64_t slab_bytes = dram->slab_bytes();
    // Whole slabs, and one at least: a pool of nothing would refuse every page.
    dram->set_capacity_bytes(std::max(wished / slab_bytes, uint64_t{1}) * slab_bytes);
  }
}

std::string DefaultSocketPath(const MachineFacts& machine, const std::string& node, uint16_t port) {
  std::string folder = "/run/forebay";
  if (machine.uid != 0) {
    folder = machine.runtime_dir.empty() ? absl::StrCat("/tmp/forebay-", machine.uid)
                                         : absl::StrCat(machine.runtime_dir, "/forebay");
  }
  return absl::StrCat(folder, "/", node, "-", port, ".sock");
}

absl::StatusOr<PoolNodeOptions> NodeOptionsOf(const v1::PoolConfig& config) {
  PoolNodeOptions options;
  options.node = config.node();
  options.eviction_policy = config.eviction_policy();
  options.host_id = OwnHostId();
  options.dram.capacity_bytes = config.dram().capacity_bytes();
  options.dram.slab_bytes = config.dram().slab_bytes();
  options.dram.huge_pages = config.dram().huge_pages();
  options.dram.populate = config.dram().populate();
  const v1::Limits& limits = config.limits();
  options.limits.sessions_max = limits.sessions_max();
  options.limits.leases_per_session_max = limits.leases_per_session_max();
  options.limits.lease_ms_max = limits.lease_ms_max();
  options.limits.pinned_percent_max = limits.pinned_percent_max();
  options.limits.puts_per_session_max = limits.puts_per_session_max();
  options.limits.put_timeout_ms = limits.put_timeout_ms();
  options.limits.subscriptions_per_session_max = limits.subscriptions_per_session_max();
  options.limits.namespaces_max = limits.namespaces_max();
  options.limits.session_idle_ms = limits.session_idle_ms();
  FB_ASSIGN_OR_RETURN(options.tenants, TenantsOf(config));
  return options;
}

std::string ShowConfig(const v1::PoolConfig& config) {
  v1::PoolConfig shown = config;
  for (v1::Tenant& tenant : *shown.mutable_tenants()) {
    if (tenant.has_secret()) tenant.set_secret("(set)");
    if (tenant.has_token()) tenant.set_token("(set)");
  }
  std::string text;
  google::protobuf::TextFormat::PrintToString(shown, &text);
  return text;
}

}  // namespace forebay
