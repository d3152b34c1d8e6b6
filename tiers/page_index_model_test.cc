// Random chains, layouts and operations on a page index beside the simplest model of it: a std::map
// of pages and rules written out as DESIGN.md says them.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/random.h"
#include "base/testing/status_matchers.h"
#include "tiers/page_index.h"

namespace forebay {
namespace {

constexpr int kPlaces = 24;  // longest chain, more than one block of a lookup
constexpr int kChains = 5;
constexpr int kSteps = 6'000;

struct ModelPage {
  PageRef ref;
  PageKey parent;
  uint32_t place = 0;
  uint32_t pins = 0;
  uint64_t used = 0;
  std::map<uint32_t, SlotRef> parts;
};

class PageIndexModel {
 public:
  PageIndexModel(uint64_t seed, absl::string_view policy)
      : random_(seed),
        exact_lru_(policy == "lru"),
        index_(*MakeEvictionPolicy(policy)),
        shape_(RandomShape()),
        ns_(index_.AddNamespace(shape_)),
        other_ns_(index_.AddNamespace(shape_)) {
    // Chains share stems: chain c leaves chain c - 1 at some place.
    for (int c = 0; c < kChains; ++c) {
      const uint64_t fork = c == 0 ? 0 : random_.Below(kPlaces);
      for (uint64_t place = 0; place < kPlaces; ++place) {
        PageKey key;
        key.bytes[0] = static_cast<uint8_t>(c + 1);
        key.bytes[8] = static_cast<uint8_t>(place);
        chains_[c].push_back(place < fork ? chains_[c - 1][place] : key);
      }
    }
  }

  void Step() {
    const int chain = static_cast<int>(random_.Below(kChains));
    const uint32_t place = static_cast<uint32_t>(random_.Below(kPlaces));
    switch (random_.Below(8)) {
      case 0:
      case 1:
      case 2:
        return Fill(chain, place);
      case 3:
        return CheckLookups(chain);
      case 4:
        return Evict();
      case 5:
        return Use(chains_[chain][place]);
      case 6:
        return RemoveSome(chains_[chain][place]);
      default:
        return PinOrUnpin(chains_[chain][place]);
    }
  }

  void CheckCounts() {
    PageIndex::Counts want;
    for (const auto& [key, page] : pages_) {
      ++want.pages;
      want.complete_pages += Complete(page) == shape_.classes;
      want.frames += page.parts.size();
    }
    ASSERT_EQ(index_.counts().pages, want.pages);
    ASSERT_EQ(index_.counts().complete_pages, want.complete_pages);
    ASSERT_EQ(index_.counts().frames, want.frames);
    ASSERT_EQ(index_.CountsOf(ns_).frame_bytes, want.frames * 100);
  }

  // Whatever happened, all of it can be evicted.
  void Drain() {
    for (auto& [key, page] : pages_) {
      while (page.pins > 0) {
        index_.Unpin(page.ref);
        --page.pins;
      }
    }
    while (!pages_.empty() && !::testing::Test::HasFailure()) Evict();
    EXPECT_FALSE(index_.Victim().valid());
  }

 private:
  PageShape RandomShape() {
    PageShape shape;
    shape.part_count = static_cast<uint32_t>(1 + random_.Below(4));
    for (uint32_t p = 0; p < shape.part_count; ++p) {
      const auto c = static_cast<LayerClass>(1 + random_.Below(kLayerClassCount));
      shape.part_class.push_back(c);
      shape.classes |= ClassBit(c);
    }
    return shape;
  }

  ClassMask Complete(const ModelPage& page) const {
    ClassMask complete = shape_.classes;
    for (uint32_t p = 0; p < shape_.part_count; ++p) {
      if (page.parts.count(p) == 0) {
        complete &= static_cast<ClassMask>(~ClassBit(shape_.part_class[p]));
      }
    }
    return complete;
  }
  bool Has(const PageKey& key, LayerClass c) const {
    const auto at = pages_.find(key);
    return at != pages_.end() && (Complete(at->second) & ClassBit(c)) != 0;
  }
  bool Needs(LayerClass c) const { return (shape_.classes & ClassBit(c)) != 0; }

  void CheckLookups(int chain) {
    std::vector<PageKey> keys = chains_[chain];
    keys.resize(random_.Below(kPlaces + 1));
    std::vector<ClassMask> want;
    std::vector<PageRef> want_refs;
    for (const PageKey& key : keys) {
      const auto at = pages_.find(key);
      if (at == pages_.end()) break;
      if (Needs(LayerClass::kFull) && !Has(key, LayerClass::kFull)) break;
      want.push_back(Complete(at->second));
      want_refs.push_back(at->second.ref);
    }
    std::vector<PageRef> refs;
    std::vector<ClassMask> classes;
    ASSERT_EQ(index_.LeadingClasses(ns_, keys, &refs, &classes), want.size());
    ASSERT_EQ(classes, want);
    ASSERT_EQ(refs, want_refs);
    ASSERT_EQ(index_.LeadingClasses(other_ns_, keys, &refs, &classes), 0u);
  }

  void Fill(int chain, uint32_t place) {
    const PageKey& key = chains_[chain][place];
    const PageKey parent = place == 0 ? PageKey{} : chains_[chain][place - 1];
    const auto [at, added] = pages_.try_emplace(key);
    ModelPage& page = at->second;
    const PageRef ref = index_.FindOrAdd(ns_, key, parent, place, 0);
    if (added) {
      page.ref = ref;
      page.parent = parent;
      page.place = place;
      page.used = ++moment_;
    }
    ASSERT_EQ(ref, page.ref);
    for (uint32_t p = 0; p < shape_.part_count; ++p) {
      if (random_.Chance(0.2)) continue;
      const SlotRef slot{static_cast<uint32_t>(random_.Below(1000)), ++moment_};
      const bool was_here = !page.parts.try_emplace(p, slot).second;
      ASSERT_EQ(index_.SetPart(ref, p, slot, 100).code(),
                was_here ? absl::StatusCode::kAlreadyExists : absl::StatusCode::kOk);
      ASSERT_EQ(index_.Part(ref, p), page.parts[p]);
    }
    ASSERT_EQ(index_.CompleteClasses(ref), Complete(page));
  }

  bool IsLeaf(const PageKey& key) const {
    return std::none_of(pages_.begin(), pages_.end(), [&](const auto& other) {
      return other.second.place > 0 && other.second.parent == key;
    });
  }

  void Evict() {
    const ModelPage* oldest = nullptr;
    bool any = false;
    for (const auto& [key, page] : pages_) {
      if (page.pins > 0 || !IsLeaf(key)) continue;
      any = true;
      if (oldest == nullptr || page.used < oldest->used) oldest = &page;
    }
    const PageRef victim = index_.Victim();
    ASSERT_EQ(victim.valid(), any);
    if (!any) return;
    const PageKey key = index_.KeyOf(victim);
    ASSERT_EQ(pages_.at(key).ref, victim);
    ASSERT_EQ(pages_.at(key).pins, 0u) << "a pinned page was named";
    ASSERT_TRUE(IsLeaf(key)) << "a page with children was named";
    if (exact_lru_) {
      ASSERT_EQ(victim, oldest->ref);
    }
    Remove(key);
  }

  void Remove(const PageKey& key) {
    const auto at = pages_.find(key);
    std::vector<SlotRef> want;
    for (const auto& [part, slot] : at->second.parts) want.push_back(slot);
    ASSERT_EQ(index_.Remove(at->second.ref), want);
    ASSERT_FALSE(index_.Holds(at->second.ref));
    pages_.erase(at);
  }

  // Now and then a whole page, as a purge would, whatever hangs on it; else one part.
  void RemoveSome(const PageKey& key) {
    const auto at = pages_.find(key);
    if (at == pages_.end()) return;
    if (random_.Chance(0.2)) return Remove(key);
    const uint32_t part = static_cast<uint32_t>(random_.Below(shape_.part_count));
    const auto stored = at->second.parts.find(part);
    const SlotRef want = stored == at->second.parts.end() ? SlotRef{} : stored->second;
    ASSERT_EQ(index_.RemovePart(at->second.ref, part), want);
    at->second.parts.erase(part);
    ASSERT_EQ(index_.CompleteClasses(at->second.ref), Complete(at->second));
  }

  void Use(const PageKey& key) {
    const auto at = pages_.find(key);
    ASSERT_EQ(index_.Find(ns_, key).valid(), at != pages_.end());
    if (at == pages_.end()) return;
    index_.Touch(at->second.ref, 0);
    at->second.used = ++moment_;
  }

  void PinOrUnpin(const PageKey& key) {
    const auto at = pages_.find(key);
    if (at == pages_.end()) return;
    if (at->second.pins > 0 && random_.Chance(0.6)) {
      index_.Unpin(at->second.ref);
      --at->second.pins;
    } else {
      index_.Pin(at->second.ref);
      ++at->second.pins;
    }
  }

  SeededRandom random_;
  const bool exact_lru_;
  PageIndex index_;
  const PageShape shape_;
  const uint32_t ns_;
  const uint32_t other_ns_;
  std::vector<PageKey> chains_[kChains];
  std::map<PageKey, ModelPage> pages_;
  uint64_t moment_ = 0;
};

class PageIndexModelTest : public ::testing::TestWithParam<std::tuple<uint64_t, const char*>> {};

TEST_P(PageIndexModelTest, AgreesWithTheModel) {
  PageIndexModel model(std::get<0>(GetParam()), std::get<1>(GetParam()));
  for (int step = 0; step < kSteps; ++step) {
    model.Step();
    if (HasFailure()) FAIL() << "at step " << step;
    if (step % 64 == 0) model.CheckCounts();
  }
  model.Drain();
}

INSTANTIATE_TEST_SUITE_P(Seeds, PageIndexModelTest,
                         ::testing::Combine(::testing::Range<uint64_t>(1, 13),
                                            ::testing::Values("lru", "s3fifo")));

}  // namespace
}  // namespace forebay
