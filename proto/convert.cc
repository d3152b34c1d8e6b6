#include "proto/convert.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace forebay {
namespace {

// A repeat beyond this is a mistake or an attack; KvLayout allows 1,024 layers.
constexpr uint64_t kLayersMax = 1024;

// The enums of base and proto have the same numbers; this only refuses unknown ones.
template <typename Base, typename Message>
absl::StatusOr<Base> FromEnum(Message value, int max, absl::string_view field) {
  const int number = static_cast<int>(value);
  if (number < 1 || number > max) {
    return absl::InvalidArgumentError(absl::StrCat(field, " has the unknown value ", number));
  }
  return static_cast<Base>(number);
}

template <size_t N>
absl::Status FromBytesField(const std::string& bytes, absl::string_view field,
                            std::array<uint8_t, N>* to) {
  if (bytes.size() != N) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has ", bytes.size(), " bytes, not ", N));
  }
  std::copy(bytes.begin(), bytes.end(), to->begin());
  return absl::OkStatus();
}

template <size_t N>
std::string ToBytesField(const std::array<uint8_t, N>& bytes) {
  return std::string(bytes.begin(), bytes.end());
}

v1::QualityBound BoundToProto(const QualityBound& bound) {
  v1::QualityBound message;
  message.set_k(static_cast<v1::QualityClass>(bound.k));
  message.set_v(static_cast<v1::QualityClass>(bound.v));
  return message;
}

v1::QualityContract QualityToProto(const QualityContract& quality) {
  v1::QualityContract message;
  message.set_version(quality.version);
  *message.mutable_bound() = BoundToProto(quality.bound);
  for (const LayerQuality& layer : quality.layers) {
    v1::QualityBound* other = message.add_layers();
    *other = BoundToProto(layer.bound);
    other->set_layer_begin(layer.layer_begin);
    other->set_layer_count(layer.layer_count);
  }
  message.set_retention(quality.retention);
  return message;
}

absl::StatusOr<QualityBound> BoundFromProto(const v1::QualityBound& message) {
  constexpr int kMax = static_cast<int>(QualityClass::kCoarse);
  QualityBound bound;
  FB_ASSIGN_OR_RETURN(bound.k, FromEnum<QualityClass>(message.k(), kMax, "quality.k"));
  FB_ASSIGN_OR_RETURN(bound.v, FromEnum<QualityClass>(message.v(), kMax, "quality.v"));
  return bound;
}

absl::StatusOr<QualityContract> QualityFromProto(const v1::QualityContract& message) {
  QualityContract quality;
  quality.version = message.version();
  FB_ASSIGN_OR_RETURN(quality.bound, BoundFromProto(message.bound()));
  for (const v1::QualityBound& other : message.layers()) {
    if (other.layer_begin() > UINT16_MAX || other.layer_count() > UINT16_MAX) {
      return absl::InvalidArgumentError(
          absl::StrCat("quality of ", other.layer_count(), " layers from ", other.layer_begin()));
    }
    LayerQuality& layer = quality.layers.emplace_back();
    layer.layer_begin = static_cast<uint16_t>(other.layer_begin());
    layer.layer_count = static_cast<uint16_t>(other.layer_count());
    FB_ASSIGN_OR_RETURN(layer.bound, BoundFromProto(other));
  }
  quality.retention = message.retention();
  return quality;
}

v1::KvLayout LayoutToProto(const KvLayout& layout) {
  v1::KvLayout message;
  message.set_page_tokens(layout.page_tokens);
  message.set_plane_order(static_cast<v1::PlaneOrder>(layout.plane_order));
  message.set_layers_per_part(layout.layers_per_part);
  message.set_heads_per_part(layout.heads_per_part);
  message.set_split_key_value(layout.split_key_value);
  for (size_t i = 0; i < layout.layers.size(); ++i) {
    if (i > 0 && layout.layers[i] == layout.layers[i - 1]) {
      v1::LayerRun* last = message.mutable_layers(message.layers_size() - 1);
      last->set_repeat(last->repeat() + 1);
      continue;
    }
    const LayerSpec& layer = layout.layers[i];
    v1::LayerRun* run = message.add_layers();
    run->set_repeat(1);
    run->set_layer_class(static_cast<v1::LayerClass>(layer.layer_class));
    run->set_attention(static_cast<v1::AttentionKind>(layer.attention));
    run->set_dtype(static_cast<v1::DType>(layer.dtype));
    run->set_kv_heads(layer.kv_heads);
    run->set_k_dim(layer.k_dim);
    run->set_v_dim(layer.v_dim);
    run->set_window_tokens(layer.window_tokens);
    run->set_state_bytes(layer.state_bytes);
  }
  return message;
}

absl::StatusOr<KvLayout> LayoutFromProto(const v1::KvLayout& message) {
  KvLayout layout;
  layout.page_tokens = message.page_tokens();
  FB_ASSIGN_OR_RETURN(layout.plane_order,
                      FromEnum<PlaneOrder>(message.plane_order(), 2, "layout.plane_order"));
  layout.layers_per_part = message.layers_per_part();
  layout.heads_per_part = message.heads_per_part();
  layout.split_key_value = message.split_key_value();
  for (int i = 0; i < message.layers_size(); ++i) {
    const v1::LayerRun& run = message.layers(i);
    const std::string field = absl::StrCat("layout.layers[", i, "]");
    LayerSpec layer;
    FB_ASSIGN_OR_RETURN(layer.layer_class, FromEnum<LayerClass>(run.layer_class(), kLayerClassCount,
                                                                field + ".layer_class"));
    FB_ASSIGN_OR_RETURN(layer.attention,
                        FromEnum<AttentionKind>(run.attention(), 5, field + ".attention"));
    FB_ASSIGN_OR_RETURN(layer.dtype, FromEnum<DType>(run.dtype(), 7, field + ".dtype"));
    layer.kv_heads = run.kv_heads();
    layer.k_dim = run.k_dim();
    layer.v_dim = run.v_dim();
    layer.window_tokens = run.window_tokens();
    layer.state_bytes = run.state_bytes();
    if (run.repeat() == 0 || layout.layers.size() + run.repeat() > kLayersMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          field, ".repeat is ", run.repeat(), "; a model has 1 to ", kLayersMax, " layers in all"));
    }
    layout.layers.insert(layout.layers.end(), run.repeat(), layer);
  }
  return layout;
}

}  // namespace

v1::NamespaceSpec ToProto(const NamespaceSpec& spec) {
  v1::NamespaceSpec message;
  message.set_model(spec.model);
  message.set_model_revision(spec.model_revision);
  *message.mutable_layout() = LayoutToProto(spec.layout);
  message.set_position_encoding(spec.position_encoding);
  message.set_adapter(spec.adapter);
  message.set_salt(spec.salt);
  *message.mutable_quality() = QualityToProto(spec.quality);
  return message;
}

absl::StatusOr<NamespaceSpec> FromProto(const v1::NamespaceSpec& message) {
  NamespaceSpec spec;
  spec.model = message.model();
  spec.model_revision = message.model_revision();
  FB_ASSIGN_OR_RETURN(spec.layout, LayoutFromProto(message.layout()));
  spec.position_encoding = message.position_encoding();
  spec.adapter = message.adapter();
  spec.salt = message.salt();
  FB_ASSIGN_OR_RETURN(spec.quality, QualityFromProto(message.quality()));
  return spec;
}

v1::OpenSessionRequest ToProto(const OpenSessionRequest& request) {
  v1::OpenSessionRequest message;
  *message.mutable_spec() = ToProto(request.spec);
  message.set_wire_version_min(request.wire_version_min);
  message.set_wire_version_max(request.wire_version_max);
  message.set_client_name(request.client_name);
  return message;
}

absl::StatusOr<OpenSessionRequest> FromProto(const v1::OpenSessionRequest& message) {
  OpenSessionRequest request;
  FB_ASSIGN_OR_RETURN(request.spec, FromProto(message.spec()));
  request.wire_version_min = message.wire_version_min();
  request.wire_version_max = message.wire_version_max();
  request.client_name = message.client_name();
  return request;
}

v1::OpenSessionReply ToProto(const OpenSessionReply& reply) {
  v1::OpenSessionReply message;
  message.set_session(ToBytesField(reply.session));
  message.set_boot_epoch(ToBytesField(reply.boot_epoch));
  message.set_root(ToBytesField(reply.root.bytes));
  message.set_namespace_id(reply.namespace_id);
  message.set_wire_version(reply.wire_version);
  for (const std::string& address : reply.data_addresses) message.add_data_addresses(address);
  message.set_host_id(reply.host_id);
  message.set_weight(reply.weight);
  return message;
}

absl::StatusOr<OpenSessionReply> FromProto(const v1::OpenSessionReply& message) {
  OpenSessionReply reply;
  FB_RETURN_IF_ERROR(FromBytesField(message.session(), "session", &reply.session));
  FB_RETURN_IF_ERROR(FromBytesField(message.boot_epoch(), "boot_epoch", &reply.boot_epoch));
  FB_RETURN_IF_ERROR(FromBytesField(message.root(), "root", &reply.root.bytes));
  reply.namespace_id = message.namespace_id();
  reply.wire_version = message.wire_version();
  reply.data_addresses.assign(message.data_addresses().begin(), message.data_addresses().end());
  reply.host_id = message.host_id();
  reply.weight = message.weight();
  return reply;
}

}  // namespace forebay
