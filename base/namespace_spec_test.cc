#include "base/namespace_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>

#include "absl/strings/escaping.h"
#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasStatus;
using ::testing::AllOf;
using ::testing::HasSubstr;

Bytes Secret(absl::string_view text) { return AsBytes(text.data(), text.size()); }

NamespaceSpec Example() {
  NamespaceSpec spec;
  spec.tenant = "acme";
  spec.model = "m";
  spec.model_revision = "r1";
  spec.layout = KvLayout::Uniform(/*layer_count=*/2, /*kv_heads=*/8, /*head_dim=*/128, DType::kBf16,
                                  /*page_tokens=*/16, /*layers_per_part=*/2);
  spec.position_encoding = "rope:theta=10000,scale=1";
  spec.salt = "s";
  return spec;
}

// Built by a Python script with struct and hmac. Whoever changes this loses every stored page.
TEST(NamespaceSpecTest, GoldenEncodingAndRootKey) {
  const std::string layer =
      "010400000001000000"
      "020400000002000000"
      "030400000003000000"
      "040400000008000000"
      "050400000080000000"
      "060400000080000000"
      "070400000000000000"
      "080400000000000000";
  const std::string expected =
      "666f72656261792e6e732e7631"  // forebay.ns.v1
      "0104000000"
      "61636d65"  // tenant
      "0201000000"
      "6d"  // model
      "0302000000"
      "7231"                // its revision
      "04cc000000"          // layout:
      "010400000010000000"  //   page tokens
      "020400000001000000"  //   plane order
      "039a000000"
      "0148000000" +
      layer +  //   layers
      "0148000000" + layer +
      "040400000002000000"  //   layers a part
      "050400000000000000"  //   heads a part
      "060400000000000000"  //   K and V apart
      "0518000000"
      "726f70653a74686574613d31303030302c7363616c653d31"
      "0600000000"  // adapter
      "0701000000"
      "73"  // salt
      "0829000000"
      "010400000001000000"
      "020400000001000000"
      "030400000001000000"
      "0400000000"
      "050400000000000000";  // quality
  EXPECT_EQ(absl::BytesToHexString(Example().CanonicalEncoding()), expected);
  EXPECT_EQ(Example().RootKey(Secret("secret")).ToHex(),
            "e5fbb8cfe61883e421be8cd1bfcf3aa55bb6ea5f8b856a292fe0a5084dbc53a7");
}

struct Change {
  const char* field;
  std::function<void(NamespaceSpec&)> apply;
};

// One change of each field that there is. The static_asserts below count the fields, so that a new
// one must come here too.
const Change kChanges[] = {
    {"tenant", [](NamespaceSpec& s) { s.tenant = "acmf"; }},
    {"model", [](NamespaceSpec& s) { s.model = "n"; }},
    {"model_revision", [](NamespaceSpec& s) { s.model_revision = "r2"; }},
    {"position_encoding", [](NamespaceSpec& s) { s.position_encoding = "rope:theta=1"; }},
    {"adapter", [](NamespaceSpec& s) { s.adapter = "lora"; }},
    {"salt", [](NamespaceSpec& s) { s.salt = "t"; }},
    {"quality.version", [](NamespaceSpec& s) { s.quality.version = 2; }},
    {"quality.bound.k", [](NamespaceSpec& s) { s.quality.bound.k = QualityClass::kNear; }},
    {"quality.bound.v", [](NamespaceSpec& s) { s.quality.bound.v = QualityClass::kNear; }},
    {"quality.layers",
     [](NamespaceSpec& s) {
       s.quality.layers = {{0, 1, {}}};
     }},
    {"quality.layers[0].layer_begin",
     [](NamespaceSpec& s) {
       s.quality.layers = {{1, 1, {}}};
     }},
    {"quality.layers[0].layer_count",
     [](NamespaceSpec& s) {
       s.quality.layers = {{0, 2, {}}};
     }},
    {"quality.layers[0].bound.k",
     [](NamespaceSpec& s) {
       s.quality.layers = {{0, 1, {QualityClass::kFair, QualityClass::kExact}}};
     }},
    {"quality.layers[0].bound.v",
     [](NamespaceSpec& s) {
       s.quality.layers = {{0, 1, {QualityClass::kExact, QualityClass::kFair}}};
     }},
    {"quality.retention", [](NamespaceSpec& s) { s.quality.retention = true; }},
    {"layout.page_tokens", [](NamespaceSpec& s) { s.layout.page_tokens = 32; }},
    {"layout.plane_order", [](NamespaceSpec& s) { s.layout.plane_order = PlaneOrder::kHeadMajor; }},
    {"layout.layers added",
     [](NamespaceSpec& s) { s.layout.layers.push_back(s.layout.layers[0]); }},
    {"layout.layers removed", [](NamespaceSpec& s) { s.layout.layers.pop_back(); }},
    {"layout.layers_per_part", [](NamespaceSpec& s) { s.layout.layers_per_part = 1; }},
    {"layout.heads_per_part", [](NamespaceSpec& s) { s.layout.heads_per_part = 4; }},
    {"layout.split_key_value", [](NamespaceSpec& s) { s.layout.split_key_value = true; }},
    {"layer 0 layer_class",
     [](NamespaceSpec& s) { s.layout.layers[0].layer_class = LayerClass::kSlidingWindow; }},
    {"layer 0 attention",
     [](NamespaceSpec& s) { s.layout.layers[0].attention = AttentionKind::kMha; }},
    {"layer 0 dtype", [](NamespaceSpec& s) { s.layout.layers[0].dtype = DType::kFp16; }},
    {"layer 0 kv_heads", [](NamespaceSpec& s) { s.layout.layers[0].kv_heads = 4; }},
    {"layer 0 k_dim", [](NamespaceSpec& s) { s.layout.layers[0].k_dim = 64; }},
    {"layer 0 v_dim", [](NamespaceSpec& s) { s.layout.layers[0].v_dim = 64; }},
    {"layer 0 window_tokens", [](NamespaceSpec& s) { s.layout.layers[0].window_tokens = 1; }},
    {"layer 0 state_bytes", [](NamespaceSpec& s) { s.layout.layers[0].state_bytes = 1; }},
    {"layer 1 layer_class",
     [](NamespaceSpec& s) { s.layout.layers[1].layer_class = LayerClass::kSlidingWindow; }},
    {"layer 1 attention",
     [](NamespaceSpec& s) { s.layout.layers[1].attention = AttentionKind::kMha; }},
    {"layer 1 dtype", [](NamespaceSpec& s) { s.layout.layers[1].dtype = DType::kFp16; }},
    {"layer 1 kv_heads", [](NamespaceSpec& s) { s.layout.layers[1].kv_heads = 4; }},
    {"layer 1 k_dim", [](NamespaceSpec& s) { s.layout.layers[1].k_dim = 64; }},
    {"layer 1 v_dim", [](NamespaceSpec& s) { s.layout.layers[1].v_dim = 64; }},
    {"layer 1 window_tokens", [](NamespaceSpec& s) { s.layout.layers[1].window_tokens = 1; }},
    {"layer 1 state_bytes", [](NamespaceSpec& s) { s.layout.layers[1].state_bytes = 1; }},
};

// Converts to whatever a field is: aggregate initialization with one more than there are fields
// does not compile, which is how they are counted.
struct Anything {
  template <typename T>
  operator T() const;  // NOLINT(google-explicit-constructor)
};
template <typename T, typename... Args>
consteval size_t FieldCount() {
  if constexpr (requires { T{Args()..., Anything()}; }) {
    return FieldCount<T, Args..., Anything>();
  } else {
    return sizeof...(Args);
  }
}
static_assert(FieldCount<NamespaceSpec>() == 8, "add the new field to kChanges");
static_assert(FieldCount<KvLayout>() == 6, "add the new field to kChanges");
static_assert(FieldCount<LayerSpec>() == 8, "add the new field to kChanges");
static_assert(FieldCount<QualityContract>() == 4, "add the new field to kChanges");
static_assert(FieldCount<LayerQuality>() == 3, "add the new field to kChanges");
static_assert(FieldCount<QualityBound>() == 2, "add the new field to kChanges");

TEST(NamespaceSpecTest, ChangingAnyFieldAloneGivesAKeyOfItsOwn) {
  std::map<std::string, std::string> fields = {
      {Example().RootKey(Secret("secret")).ToHex(), "nothing"}};
  for (const Change& change : kChanges) {
    NamespaceSpec spec = Example();
    change.apply(spec);
    ASSERT_FALSE(spec == Example()) << change.field << " was not changed";
    const auto [entry, is_new] =
        fields.emplace(spec.RootKey(Secret("secret")).ToHex(), change.field);
    EXPECT_TRUE(is_new) << "changing " << change.field << " is like changing " << entry->second;
  }
  EXPECT_NE(Example().RootKey(Secret("secret")), Example().RootKey(Secret("other")));
  EXPECT_EQ(Example().RootKey(Secret("secret")), Example().RootKey(Secret("secret")));
}

// Moving text from one field to another must not meet: each is tagged and has its length.
TEST(NamespaceSpecTest, TextFieldsAreSeparateDomains) {
  std::string NamespaceSpec::*const kTexts[] = {
      &NamespaceSpec::tenant,  &NamespaceSpec::model, &NamespaceSpec::model_revision,
      &NamespaceSpec::adapter, &NamespaceSpec::salt,  &NamespaceSpec::position_encoding,
  };
  std::map<std::string, size_t> encodings;
  for (size_t i = 0; i < std::size(kTexts); ++i) {
    NamespaceSpec spec;
    spec.*kTexts[i] = "x";
    EXPECT_TRUE(encodings.emplace(spec.CanonicalEncoding(), i).second) << i;
  }
  NamespaceSpec adapter = Example();
  adapter.adapter = "ab";
  adapter.salt = "c";
  NamespaceSpec salt = Example();
  salt.adapter = "a";
  salt.salt = "bc";
  EXPECT_NE(adapter.RootKey(Secret("k")), salt.RootKey(Secret("k")));
  // A field that spells out the encoding of its neighbour is still that field alone.
  NamespaceSpec forged = Example();
  forged.salt = std::string("\x07\x01\x00\x00\x00s", 6);
  EXPECT_NE(forged.CanonicalEncoding(), Example().CanonicalEncoding());
}

TEST(NamespaceSpecTest, NamesEveryFaultAtOnce) {
  FB_EXPECT_OK(Example().Validate());
  NamespaceSpec spec = Example();
  spec.model.clear();
  spec.salt = std::string(1025, 'x');
  spec.adapter = std::string("a\0b", 3);
  spec.quality.version = 2;
  spec.layout.page_tokens = 0;
  EXPECT_THAT(spec.Validate(),
              HasStatus(absl::StatusCode::kInvalidArgument,
                        AllOf(HasSubstr("model is empty"), HasSubstr("salt has 1025 bytes"),
                              HasSubstr("adapter has a NUL"), HasSubstr("quality version 2"),
                              HasSubstr("layout: page_tokens"))));
  spec = Example();
  spec.quality.bound.v = static_cast<QualityClass>(9);
  EXPECT_THAT(spec.Validate(),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("quality class 9")));
}

}  // namespace
}  // namespace forebay
