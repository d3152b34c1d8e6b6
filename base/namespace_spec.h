#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "base/kv_layout.h"
#include "base/page_key.h"
#include "base/quality.h"

namespace forebay {

// Everything that must be equal for two pages to be interchangeable, apart from tokens. Changing
// any one field gives another root key, and so a miss.
//
// `tenant` is not sent by a client: the daemon fills it in from the authenticated identity.
// Limits   each text at most 1,024 bytes, no NUL; `model` is not empty.
struct NamespaceSpec {
  std::string tenant;
  std::string model;           // a name for people and part of the identity
  std::string model_revision;  // fingerprint of the weights
  KvLayout layout;
  std::string position_encoding;  // e.g. "rope:theta=10000,scale=1"
  std::string adapter;            // LoRA or other adapter; empty for none
  std::string salt;               // cache salt; empty for none
  QualityContract quality;

  friend bool operator==(const NamespaceSpec&, const NamespaceSpec&) = default;

  // INVALID_ARGUMENT that names every fault, joined by "; ".
  absl::Status Validate() const;

  // Canonical bytes: "forebay.ns.v1", then each field as (tag u8, length u32 LE, bytes), in a fixed
  // order, each present even where empty. No two different specs encode alike.
  std::string CanonicalEncoding() const;

  // HMAC-SHA-256 of CanonicalEncoding() under the tenant's secret: the parent of every first page.
  PageKey RootKey(Bytes tenant_secret) const;
};

}  // namespace forebay
