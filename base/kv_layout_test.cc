#include "base/kv_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasStatus;
using ::testing::AllOf;
using ::testing::HasSubstr;

KvLayout Llama() {
  return KvLayout::Uniform(/*layer_count=*/32, /*kv_heads=*/8, /*head_dim=*/128, DType::kBf16,
                           /*page_tokens=*/16, /*layers_per_part=*/1);
}

LayerSpec StateLayer(uint32_t state_bytes) {
  LayerSpec layer;
  layer.layer_class = LayerClass::kState;
  layer.attention = AttentionKind::kNone;
  layer.dtype = DType::kFp32;
  layer.state_bytes = state_bytes;
  return layer;
}

uint64_t SumOfParts(const KvLayout& layout) {
  uint64_t bytes = 0;
  for (const PartSpec& part : layout.Parts()) bytes += part.raw_bytes;
  return bytes;
}

TEST(KvLayoutTest, ALayerOfAPageOfLlamaIs64KiB) {
  const KvLayout layout = Llama();
  FB_ASSERT_OK(layout.Validate());
  const std::vector<PartSpec> parts = layout.Parts();
  ASSERT_EQ(parts.size(), 32u);
  EXPECT_EQ(parts[5].layer_begin, 5);
  EXPECT_EQ(parts[5].layer_count, 1);
  EXPECT_EQ(parts[5].head_count, 8);
  EXPECT_EQ(parts[5].stream, Stream::kKeyValue);
  EXPECT_EQ(parts[5].raw_bytes, 16u * 8 * 128 * 2 * 2);
  EXPECT_EQ(layout.PageBytes(), 32u * 65536);
  EXPECT_EQ(layout.Classes(), ClassBit(LayerClass::kFull));
  EXPECT_EQ(layout.KeyPlaneBytes(0, /*head_count=*/4), 16u * 4 * 128 * 2);
  EXPECT_EQ(layout.ToString(), "32 layers, gqa 8 x 128, bf16, 16 tokens a page, 64 KiB a part");
}

// By layer, then head, then stream; the last part takes the layers that are left.
TEST(KvLayoutTest, PartsAreOrderedByLayerThenHeadThenStream) {
  KvLayout layout = Llama();
  layout.layers.resize(5);
  layout.layers_per_part = 2;
  layout.heads_per_part = 4;
  layout.split_key_value = true;
  FB_ASSERT_OK(layout.Validate());
  const std::vector<PartSpec> parts = layout.Parts();
  ASSERT_EQ(parts.size(), 3u * 2 * 2);
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i].layer_begin, i / 4 * 2);
    EXPECT_EQ(parts[i].layer_count, i < 8 ? 2 : 1);
    EXPECT_EQ(parts[i].head_begin, i / 2 % 2 * 4);
    EXPECT_EQ(parts[i].head_count, 4);
    EXPECT_EQ(parts[i].stream, i % 2 == 0 ? Stream::kKey : Stream::kValue);
  }
  EXPECT_EQ(SumOfParts(layout), layout.PageBytes());
}

TEST(KvLayoutTest, MlaHasOneLatentPart) {
  KvLayout layout = KvLayout::Uniform(4, /*kv_heads=*/1, /*head_dim=*/512, DType::kFp16, 64, 4);
  for (LayerSpec& layer : layout.layers) {
    layer.attention = AttentionKind::kMla;
    layer.v_dim = 64;  // the rotary part
  }
  FB_ASSERT_OK(layout.Validate());
  const std::vector<PartSpec> parts = layout.Parts();
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].stream, Stream::kLatent);
  EXPECT_EQ(parts[0].raw_bytes, 4u * 64 * (512 + 64) * 2);
  EXPECT_EQ(layout.ToString(), "4 layers, mla 1 x 512/64, fp16, 64 tokens a page, 288 KiB a part");
}

TEST(KvLayoutTest, AValueThatIsAViewOfItsKeyIsStoredOnce) {
  KvLayout layout = KvLayout::Uniform(2, 1, 576, DType::kFp8E4M3, 64, 1);
  for (LayerSpec& layer : layout.layers) layer.v_dim = 0;
  EXPECT_EQ(layout.PageBytes(), 2u * 64 * 576);
  EXPECT_EQ(layout.ValuePlaneBytes(0, 1), 0u);
  layout.split_key_value = true;
  FB_ASSERT_OK(layout.Validate());
  const std::vector<PartSpec> parts = layout.Parts();
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].stream, Stream::kKey);
  EXPECT_EQ(SumOfParts(layout), layout.PageBytes());
}

// Full, window and state layers mixed as in hybrid models: each in parts of its own.
TEST(KvLayoutTest, AHybridModelHasPartsOfEachClass) {
  KvLayout layout = Llama();
  layout.layers.resize(6);
  layout.layers_per_part = 8;
  layout.layers[2].layer_class = LayerClass::kSlidingWindow;
  layout.layers[2].window_tokens = 128;
  layout.layers[3] = layout.layers[2];
  layout.layers[4] = StateLayer(10'000);
  layout.layers[5] = StateLayer(10'000);
  FB_ASSERT_OK(layout.Validate());
  const std::vector<PartSpec> parts = layout.Parts();
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].layer_class, LayerClass::kFull);
  EXPECT_EQ(parts[1].layer_class, LayerClass::kSlidingWindow);
  EXPECT_EQ(parts[1].layer_begin, 2);
  EXPECT_EQ(parts[2].layer_class, LayerClass::kState);
  EXPECT_EQ(parts[2].stream, Stream::kState);
  EXPECT_EQ(parts[2].head_count, 0);
  EXPECT_EQ(parts[2].raw_bytes, 20'000u);
  EXPECT_EQ(layout.Classes(), 7);
  EXPECT_EQ(SumOfParts(layout), layout.PageBytes());
}

// A part of unequal layers would have no one dtype, head count or shape to put into its header.
TEST(KvLayoutTest, LayersThatDifferInAnyFieldNeverShareAPart) {
  const std::function<void(LayerSpec&)> kChanges[] = {
      [](LayerSpec& l) { l = StateLayer(64); },
      [](LayerSpec& l) { l.attention = AttentionKind::kMha; },
      [](LayerSpec& l) { l.dtype = DType::kFp16; },
      [](LayerSpec& l) { l.kv_heads = 16; },
      [](LayerSpec& l) { l.k_dim = 64; },
      [](LayerSpec& l) { l.v_dim = 64; },
      [](LayerSpec& l) {
        l.layer_class = LayerClass::kSlidingWindow;
        l.window_tokens = 4096;
      },
  };
  for (size_t i = 0; i < std::size(kChanges); ++i) {
    KvLayout layout = Llama();
    layout.layers.resize(4);
    layout.layers_per_part = 4;
    kChanges[i](layout.layers[2]);
    FB_ASSERT_OK(layout.Validate()) << i;
    const std::vector<PartSpec> parts = layout.Parts();
    ASSERT_EQ(parts.size(), 3u) << i;
    EXPECT_EQ(parts[0].layer_count, 2);
    EXPECT_EQ(parts[1].layer_count, 1);
    EXPECT_EQ(parts[1].layer_begin, 2);
    EXPECT_EQ(SumOfParts(layout), layout.PageBytes());
  }
}

TEST(KvLayoutTest, EachFaultIsNamed) {
  const struct {
    const char* message;
    std::function<void(KvLayout&)> change;
  } kFaults[] = {
      {"layers must be 1 to 1024, not 0", [](KvLayout& l) { l.layers.clear(); }},
      {"layers must be 1 to 1024, not 1025", [](KvLayout& l) { l.layers.resize(1025); }},
      {"page_tokens must be", [](KvLayout& l) { l.page_tokens = 0; }},
      {"page_tokens must be", [](KvLayout& l) { l.page_tokens = 65'536; }},
      {"unknown plane order", [](KvLayout& l) { l.plane_order = static_cast<PlaneOrder>(3); }},
      {"layers_per_part", [](KvLayout& l) { l.layers_per_part = 0; }},
      {"heads_per_part 3 does not divide", [](KvLayout& l) { l.heads_per_part = 3; }},
      {"layer 1: unknown layer class",
       [](KvLayout& l) { l.layers[1].layer_class = static_cast<LayerClass>(4); }},
      {"unknown attention kind",
       [](KvLayout& l) { l.layers[1].attention = static_cast<AttentionKind>(0); }},
      {"unknown dtype", [](KvLayout& l) { l.layers[1].dtype = static_cast<DType>(9); }},
      {"kv_heads must be", [](KvLayout& l) { l.layers[1].kv_heads = 0; }},
      {"kv_heads must be", [](KvLayout& l) { l.layers[1].kv_heads = 65'536; }},
      {"k_dim must be", [](KvLayout& l) { l.layers[1].k_dim = 0; }},
      {"v_dim must be", [](KvLayout& l) { l.layers[1].v_dim = 1 << 20; }},
      {"window_tokens is above 0 exactly", [](KvLayout& l) { l.layers[1].window_tokens = 1; }},
      {"window_tokens is above 0 exactly",
       [](KvLayout& l) { l.layers[1].layer_class = LayerClass::kSlidingWindow; }},
      {"only a state layer has state_bytes", [](KvLayout& l) { l.layers[1].state_bytes = 1; }},
      {"only a state layer has no attention",
       [](KvLayout& l) { l.layers[1].attention = AttentionKind::kNone; }},
      {"have one kv_head", [](KvLayout& l) { l.layers[1].attention = AttentionKind::kMla; }},
      {"needs state_bytes", [](KvLayout& l) { l.layers[1] = StateLayer(0); }},
      {"has no kv_heads",
       [](KvLayout& l) {
         l.layers[1] = StateLayer(1);
         l.layers[1].kv_heads = 1;
       }},
      {"has no k_dim",
       [](KvLayout& l) {
         l.layers[1] = StateLayer(1);
         l.layers[1].v_dim = 1;
       }},
      {"state layer is none",
       [](KvLayout& l) {
         l.layers[1] = StateLayer(1);
         l.layers[1].attention = AttentionKind::kGqa;
       }},
      {"is not below 1 GiB",
       [](KvLayout& l) {
         l.page_tokens = 65'535;
         l.layers[0].kv_heads = 65'535;
         l.layers[0].k_dim = l.layers[0].v_dim = 65'536;
       }},
      {"parts a page are more than 65535",
       [](KvLayout& l) {
         l = KvLayout::Uniform(1024, 64, 1, DType::kInt8, 1, 1);
         l.heads_per_part = 1;
       }},
  };
  for (const auto& [message, change] : kFaults) {
    KvLayout layout = Llama();
    change(layout);
    EXPECT_THAT(layout.Validate(),
                HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  }
}

TEST(KvLayoutTest, AllFaultsAreReportedAtOnce) {
  KvLayout layout = Llama();
  layout.page_tokens = 0;
  layout.layers[3].k_dim = 0;
  layout.layers[9].v_dim = 1 << 30;
  EXPECT_THAT(layout.Validate(),
              HasStatus(absl::StatusCode::kInvalidArgument,
                        AllOf(HasSubstr("page_tokens"), HasSubstr("; layer 3: k_dim"),
                              HasSubstr("; layer 9: v_dim"))));
  for (LayerSpec& layer : layout.layers) layer.k_dim = 0;
  EXPECT_THAT(layout.Validate(),
              HasStatus(absl::StatusCode::kInvalidArgument, HasSubstr("; and 18 more")));
}

TEST(KvLayoutTest, AllLayerClassesHaveABitOfTheirOwn) {
  EXPECT_EQ(ClassBit(LayerClass::kFull), 1);
  EXPECT_EQ(ClassBit(LayerClass::kSlidingWindow), 2);
  EXPECT_EQ(ClassBit(LayerClass::kState), 4);
}

}  // namespace
}  // namespace forebay
