#include "tiers/page_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/testing/status_matchers.h"

namespace forebay {
namespace {

using ::forebay::testing::HasCode;
using ::testing::ElementsAre;

PageKey Key(int chain, int place) {
  PageKey key;
  key.bytes[0] = static_cast<uint8_t>(chain);
  key.bytes[1] = static_cast<uint8_t>(place);
  key.bytes[2] = 1;
  return key;
}

SlotRef Slot(uint32_t n) { return {n, 1000 + uint64_t{n}}; }

PageShape FullShape(uint32_t parts) {
  PageShape shape;
  shape.part_count = parts;
  shape.classes = ClassBit(LayerClass::kFull);
  shape.part_class.assign(parts, LayerClass::kFull);
  return shape;
}

class PageIndexTest : public ::testing::Test {
 protected:
  PageIndexTest() : index_(MakeLruPolicy()), ns_(index_.AddNamespace(FullShape(2))) {}

  PageRef Add(int chain, int place) {
    return index_.FindOrAdd(ns_, Key(chain, place), Key(chain, place - 1),
                            static_cast<uint32_t>(place), 0);
  }
  PageRef AddComplete(int chain, int place) {
    const PageRef page = Add(chain, place);
    FB_EXPECT_OK(index_.SetPart(page, 0, Slot(1), 10));
    FB_EXPECT_OK(index_.SetPart(page, 1, Slot(2), 10));
    return page;
  }
  std::vector<PageKey> Chain(int chain, int count) {
    std::vector<PageKey> keys;
    for (int i = 0; i < count; ++i) keys.push_back(Key(chain, i));
    return keys;
  }
  uint32_t Leading(const std::vector<PageKey>& keys) {
    return index_.LeadingClasses(ns_, keys, &pages_, &classes_);
  }

  PageIndex index_;
  const uint32_t ns_;
  std::vector<PageRef> pages_;
  std::vector<ClassMask> classes_;
};

TEST_F(PageIndexTest, APageIsCompleteWithItsLastPart) {
  const PageRef page = Add(1, 0);
  EXPECT_EQ(index_.Find(ns_, Key(1, 0)), page);
  FB_EXPECT_OK(index_.SetPart(page, 1, Slot(7), 100));
  EXPECT_FALSE(index_.Complete(page));
  EXPECT_FALSE(index_.Part(page, 0).valid());
  EXPECT_EQ(index_.Part(page, 1), Slot(7));

  FB_EXPECT_OK(index_.SetPart(page, 0, Slot(8), 50));
  EXPECT_TRUE(index_.Complete(page));
  EXPECT_EQ(index_.CompleteClasses(page), ClassBit(LayerClass::kFull));
  EXPECT_EQ(index_.counts().complete_pages, 1u);
  EXPECT_EQ(index_.counts().frames, 2u);
  EXPECT_EQ(index_.counts().frame_bytes, 150u);
}

TEST_F(PageIndexTest, TheFirstOfTwoEqualPutsWins) {
  const PageRef page = Add(1, 0);
  FB_EXPECT_OK(index_.SetPart(page, 0, Slot(7), 100));
  EXPECT_THAT(index_.SetPart(page, 0, Slot(8), 100), HasCode(absl::StatusCode::kAlreadyExists));
  EXPECT_EQ(index_.Part(page, 0), Slot(7));
  EXPECT_THAT(index_.SetPart(page, 2, Slot(8), 100), HasCode(absl::StatusCode::kInvalidArgument));
}

TEST_F(PageIndexTest, AKeyDoesNotCrossNamespaces) {
  const uint32_t other = index_.AddNamespace(FullShape(2));
  AddComplete(1, 0);
  EXPECT_FALSE(index_.Find(other, Key(1, 0)).valid());
  EXPECT_EQ(index_.LeadingClasses(other, Chain(1, 1), &pages_, &classes_), 0u);
  EXPECT_EQ(index_.CountsOf(other).pages, 0u);
  EXPECT_EQ(index_.CountsOf(ns_).pages, 1u);
}

TEST_F(PageIndexTest, AStaleReferenceIsHarmless) {
  const PageRef old = AddComplete(1, 0);
  index_.Pin(old);
  EXPECT_THAT(index_.Remove(old), ElementsAre(Slot(1), Slot(2)));
  const PageRef fresh = Add(2, 0);
  ASSERT_EQ(fresh.row, old.row);
  ASSERT_NE(fresh, old);

  EXPECT_FALSE(index_.Holds(old));
  EXPECT_THAT(index_.SetPart(old, 0, Slot(3), 1), HasCode(absl::StatusCode::kFailedPrecondition));
  EXPECT_FALSE(index_.Part(old, 0).valid());
  EXPECT_FALSE(index_.RemovePart(old, 0).valid());
  EXPECT_TRUE(index_.Remove(old).empty());
  EXPECT_EQ(index_.CompleteClasses(old), 0);
  index_.Touch(old, 1);
  index_.Pin(old);
  index_.Unpin(old);
  EXPECT_EQ(index_.Victim(), fresh) << "a pin that went with its page holds no other page";
  EXPECT_FALSE(index_.Holds(PageRef{}));
}

TEST_F(PageIndexTest, MatchStopsAtTheFirstMissingOrIncompletePage) {
  for (const int place : {0, 1, 2, 4}) AddComplete(1, place);
  EXPECT_EQ(Leading(Chain(1, 6)), 3u);
  ASSERT_EQ(pages_.size(), 3u);
  EXPECT_EQ(pages_[2], index_.Find(ns_, Key(1, 2)));

  const SlotRef bad = index_.RemovePart(pages_[1], 0);
  EXPECT_EQ(bad, Slot(1));
  EXPECT_EQ(Leading(Chain(1, 6)), 1u);
  EXPECT_EQ(Leading({}), 0u);
}

TEST_F(PageIndexTest, AChainLongerThanAnyBlockIsWalkedWhole) {
  for (int place = 0; place < 200; ++place) AddComplete(1, place);
  EXPECT_EQ(Leading(Chain(1, 200)), 200u);
  EXPECT_EQ(Leading(Chain(1, 33)), 33u);
}

TEST_F(PageIndexTest, LeavesGoBeforeParents) {
  std::vector<PageRef> chain;
  for (int place = 0; place < 4; ++place) chain.push_back(Add(1, place));
  for (int place = 3; place >= 0; --place) {
    const PageRef victim = index_.Victim();
    EXPECT_EQ(victim, chain[place]);
    index_.Remove(victim);
  }
  EXPECT_FALSE(index_.Victim().valid());
}

TEST_F(PageIndexTest, AParentThatComesLateKnowsItsChildren) {
  const PageRef child_a = Add(1, 1);
  const PageRef child_b = index_.FindOrAdd(ns_, Key(2, 1), Key(1, 0), 1, 0);
  const PageRef parent = Add(1, 0);
  index_.Touch(child_a, 1);
  index_.Touch(child_b, 1);

  EXPECT_EQ(index_.Victim(), child_a) << "though the parent was used longer ago";
  index_.Remove(child_a);
  EXPECT_EQ(index_.Victim(), child_b);
  index_.Remove(child_b);
  EXPECT_EQ(index_.Victim(), parent);
}

TEST_F(PageIndexTest, AParentThatComesBackKnowsItsChildren) {
  const PageRef parent = Add(1, 0);
  const PageRef child = Add(1, 1);
  index_.Remove(parent);  // Found bad, say.
  EXPECT_FALSE(index_.Find(ns_, Key(1, 0)).valid());
  const PageRef again = Add(1, 0);
  index_.Touch(child, 1);
  EXPECT_EQ(index_.Victim(), child);
  index_.Remove(child);
  EXPECT_EQ(index_.Victim(), again);
}

TEST_F(PageIndexTest, PinsAreCounted) {
  const PageRef page = Add(1, 0);
  index_.Pin(page);
  index_.Pin(page);
  EXPECT_FALSE(index_.Victim().valid());
  index_.Unpin(page);
  EXPECT_FALSE(index_.Victim().valid());
  index_.Unpin(page);
  EXPECT_EQ(index_.Victim(), page);
}

TEST_F(PageIndexTest, APinnedParentStaysWhenItsLastChildGoes) {
  const PageRef parent = Add(1, 0);
  const PageRef child = Add(1, 1);
  index_.Pin(parent);
  index_.Remove(child);
  EXPECT_FALSE(index_.Victim().valid());
  index_.Unpin(parent);
  EXPECT_EQ(index_.Victim(), parent);
}

// Keys come from clients. One that says its page is its own parent, or two that name each other,
// must not become pages that nothing can evict.
TEST_F(PageIndexTest, ALieAboutParentsMakesNothingUnevictable) {
  index_.FindOrAdd(ns_, Key(1, 0), Key(1, 0), 3, 0);
  for (uint32_t round = 0; round < 4; ++round) {
    for (int a = 0; a < 4; ++a) {
      for (int b = 0; b < 4; ++b) {
        const PageRef page =
            index_.FindOrAdd(ns_, Key(2, a), Key(2, b), static_cast<uint32_t>(a + b) + round, 0);
        if (b == 2) index_.Remove(page);
      }
    }
  }
  uint64_t evicted = 0;
  for (PageRef victim = index_.Victim(); victim.valid(); victim = index_.Victim()) {
    index_.Remove(victim);
    ++evicted;
  }
  EXPECT_GT(evicted, 0u);
  EXPECT_EQ(index_.counts().pages, 0u);
}

// Rows that only stand for absent parents go with their last child.
TEST_F(PageIndexTest, PagesThatComeAndGoLeaveNothing) {
  for (int place = 1; place < 100; place += 2) index_.Remove(Add(1, place));
  const uint64_t before = index_.memory_bytes();
  for (int round = 0; round < 200; ++round) {
    for (int place = 1; place < 100; place += 2) Add(round % 50, place);
    while (index_.Victim().valid()) index_.Remove(index_.Victim());
  }
  EXPECT_LE(index_.memory_bytes(), before + before / 4);
  EXPECT_EQ(index_.counts().pages, 0u);
  EXPECT_EQ(index_.counts().frames, 0u);
}

TEST_F(PageIndexTest, SaysWhatAPageIs) {
  const PageRef page = Add(1, 5);
  EXPECT_EQ(index_.KeyOf(page), Key(1, 5));
  EXPECT_EQ(index_.NamespaceOf(page), ns_);
  EXPECT_EQ(index_.PlaceOf(page), 5u);
}

TEST_F(PageIndexTest, CountsFollowEveryChange) {
  const PageRef page = AddComplete(1, 0);
  AddComplete(2, 0);
  index_.RemovePart(page, 1);
  EXPECT_EQ(index_.counts().complete_pages, 1u);
  EXPECT_EQ(index_.counts().frames, 3u);
  index_.Remove(page);
  EXPECT_EQ(index_.counts().pages, 1u);
  EXPECT_EQ(index_.counts().complete_pages, 1u);
  EXPECT_EQ(index_.counts().frames, 2u);
  EXPECT_EQ(index_.counts().frame_bytes, 20u);
  EXPECT_EQ(index_.CountsOf(ns_).frame_bytes, 20u);
}

TEST_F(PageIndexTest, ANamespaceGoesWithoutATrace) {
  const uint32_t other = index_.AddNamespace(FullShape(3));
  const uint32_t third = index_.AddNamespace(FullShape(1));
  for (int place = 0; place < 3; ++place) AddComplete(1, place);
  // Of an absent parent.
  const PageRef pinned = index_.FindOrAdd(other, Key(1, 2), Key(1, 1), 2, 0);
  const PageRef loose = index_.FindOrAdd(other, Key(2, 0), {}, 0, 0);
  const PageRef apart = index_.FindOrAdd(third, Key(1, 0), {}, 0, 0);
  index_.Pin(pinned);

  EXPECT_THAT(index_.UnpinnedPagesOf({other}), ElementsAre(loose));
  EXPECT_THAT(index_.UnpinnedPagesOf({other, third}),
              ::testing::UnorderedElementsAre(loose, apart));
  index_.Unpin(pinned);
  for (const PageRef page : index_.UnpinnedPagesOf({other})) index_.Remove(page);
  index_.RemoveNamespace(other);
  EXPECT_EQ(index_.CountsOf(ns_).pages, 3u);
  EXPECT_EQ(Leading(Chain(1, 3)), 3u);
  EXPECT_NE(index_.AddNamespace(FullShape(3)), other) << "an id came twice";
}

TEST(PageShapeTest, NamesTheClassOfEachPart) {
  KvLayout layout = KvLayout::Uniform(/*layer_count=*/4, /*kv_heads=*/2, /*head_dim=*/8,
                                      DType::kBf16, /*page_tokens=*/16, /*layers_per_part=*/1);
  EXPECT_EQ(PageShape::Of(layout).part_count, 4u);
  layout.layers[1].layer_class = LayerClass::kSlidingWindow;
  layout.layers[1].window_tokens = 16;
  layout.layers[3].layer_class = LayerClass::kSlidingWindow;
  layout.layers[3].window_tokens = 33;
  const PageShape shape = PageShape::Of(layout);
  EXPECT_EQ(shape.classes, ClassBit(LayerClass::kFull) | ClassBit(LayerClass::kSlidingWindow));
  EXPECT_THAT(shape.part_class, ElementsAre(LayerClass::kFull, LayerClass::kSlidingWindow,
                                            LayerClass::kFull, LayerClass::kSlidingWindow));
}

using PageIndexDeathTest = PageIndexTest;

TEST_F(PageIndexDeathTest, UnpinWithoutAPinAborts) {
  const PageRef page = Add(1, 0);
  EXPECT_DEATH(index_.Unpin(page), "pin_count > 0");
}

TEST_F(PageIndexDeathTest, ForgettingANamespaceWithPagesAborts) {
  Add(1, 0);
  EXPECT_DEATH(index_.RemoveNamespace(ns_), "pages == 0");
}

TEST_F(PageIndexDeathTest, AnUnknownNamespaceAborts) {
  const uint32_t other = index_.AddNamespace(FullShape(1));
  index_.RemoveNamespace(other);
  EXPECT_DEATH(index_.CountsOf(other), "namespaces");
  EXPECT_DEATH(index_.LeadingClasses(99, {}, &pages_, &classes_), "namespaces.size");
}

}  // namespace
}  // namespace forebay
