#include "base/namespace_spec.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/broken.h"
#include "base/check.h"
#include "base/sha256.h"

namespace forebay {
namespace {

constexpr absl::string_view kDomain = "forebay.ns.v1";
constexpr size_t kTextBytesMax = 1024;

// Writes (tag u8, length u32 LE, bytes) one after another. A value of several fields is written
// into a Fields of its own and added as bytes.
//
// Each Encode function below takes its struct apart by structured binding, so that a field which is
// added to the struct and not encoded here does not compile.
class Fields {
 public:
  void Add(uint8_t tag, absl::string_view bytes) {
    FB_CHECK(bytes.size() <= UINT32_MAX);
    out_.push_back(static_cast<char>(tag));
    AppendU32(static_cast<uint32_t>(bytes.size()));
    out_.append(bytes.data(), bytes.size());
  }
  void AddU32(uint8_t tag, uint32_t value) {
    char bytes[4];
    StoreU32(value, bytes);
    Add(tag, absl::string_view(bytes, sizeof(bytes)));
  }
  template <typename Enum>
  void AddEnum(uint8_t tag, Enum value) {
    AddU32(tag, static_cast<uint32_t>(value));
  }
  const std::string& bytes() const { return out_; }

 private:
  static void StoreU32(uint32_t value, char bytes[4]) {
    for (int i = 0; i < 4; ++i) bytes[i] = static_cast<char>((value >> (8 * i)) & 0xff);
  }
  void AppendU32(uint32_t value) {
    char bytes[4];
    StoreU32(value, bytes);
    out_.append(bytes, sizeof(bytes));
  }

  std::string out_;
};

std::string Encode(const LayerSpec& layer) {
  const auto& [layer_class, attention, dtype, kv_heads, k_dim, v_dim, window_tokens, state_bytes] =
      layer;
  Fields fields;
  fields.AddEnum(1, layer_class);
  fields.AddEnum(2, attention);
  if (!FB_BROKEN("identity_without_dtype")) fields.AddEnum(3, dtype);
  fields.AddU32(4, kv_heads);
  fields.AddU32(5, k_dim);
  fields.AddU32(6, v_dim);
  fields.AddU32(7, window_tokens);
  fields.AddU32(8, state_bytes);
  return fields.bytes();
}

std::string Encode(const KvLayout& layout) {
  const auto& [page_tokens, plane_order, layers, layers_per_part, heads_per_part, split_key_value] =
      layout;
  Fields fields;
  fields.AddU32(1, page_tokens);
  fields.AddEnum(2, plane_order);
  Fields each;
  for (const LayerSpec& layer : layers) each.Add(1, Encode(layer));
  fields.Add(3, each.bytes());
  fields.AddU32(4, layers_per_part);
  fields.AddU32(5, heads_per_part);
  fields.AddU32(6, split_key_value ? 1 : 0);
  return fields.bytes();
}

void AddBound(const QualityBound& bound, uint8_t first_tag, Fields* fields) {
  const auto& [k, v] = bound;
  fields->AddEnum(first_tag, k);
  fields->AddEnum(static_cast<uint8_t>(first_tag + 1), v);
}

std::string Encode(const LayerQuality& layer) {
  const auto& [layer_begin, layer_count, bound] = layer;
  Fields fields;
  fields.AddU32(1, layer_begin);
  fields.AddU32(2, layer_count);
  AddBound(bound, 3, &fields);
  return fields.bytes();
}

std::string Encode(const QualityContract& quality) {
  const auto& [version, bound, layers, retention] = quality;
  Fields fields;
  fields.AddU32(1, version);
  AddBound(bound, 2, &fields);
  Fields each;
  for (const LayerQuality& layer : layers) each.Add(1, Encode(layer));
  fields.Add(4, each.bytes());
  fields.AddU32(5, retention ? 1 : 0);
  return fields.bytes();
}

std::string Encode(const NamespaceSpec& spec) {
  const auto& [tenant, model, model_revision, layout, position_encoding, adapter, salt, quality] =
      spec;
  Fields fields;
  fields.Add(1, tenant);
  fields.Add(2, model);
  fields.Add(3, model_revision);
  fields.Add(4, Encode(layout));
  fields.Add(5, position_encoding);
  fields.Add(6, adapter);
  fields.Add(7, salt);
  fields.Add(8, Encode(quality));
  return fields.bytes();
}

}  // namespace

absl::Status NamespaceSpec::Validate() const {
  std::vector<std::string> faults;
  const auto check_text = [&faults](absl::string_view name, const std::string& text) {
    if (text.size() > kTextBytesMax) {
      faults.push_back(
          absl::StrCat(name, " has ", text.size(), " bytes, more than ", kTextBytesMax));
    }
    if (text.find('\0') != std::string::npos) faults.push_back(absl::StrCat(name, " has a NUL"));
  };
  check_text("tenant", tenant);
  check_text("model", model);
  check_text("model_revision", model_revision);
  check_text("position_encoding", position_encoding);
  check_text("adapter", adapter);
  check_text("salt", salt);
  if (model.empty()) faults.push_back("model is empty");
  if (const absl::Status status = quality.Validate(static_cast<uint32_t>(layout.layers.size()));
      !status.ok()) {
    faults.push_back(std::string(status.message()));
  }
  if (const absl::Status status = layout.Validate(); !status.ok()) {
    faults.push_back(absl::StrCat("layout: ", status.message()));
  }
  if (faults.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(faults, "; "));
}

std::string NamespaceSpec::CanonicalEncoding() const {
  return absl::StrCat(kDomain, Encode(*this));
}

PageKey NamespaceSpec::RootKey(Bytes tenant_secret) const {
  const std::string encoding = CanonicalEncoding();
  return PageKey{HmacSha256(tenant_secret, AsBytes(encoding.data(), encoding.size()))};
}

}  // namespace forebay
