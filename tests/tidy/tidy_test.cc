// The architecture and the house style, executable. First the tree itself, rule by rule;
// rules_test.cc shows that each rule catches what it should.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/tidy/catalogue.h"
#include "tests/tidy/rules.h"
#include "tests/tidy/source_tree.h"

namespace forebay::tidy {
namespace {

using ::testing::IsEmpty;
using ::testing::IsSupersetOf;

Faults Everywhere(Faults (*rule)(const SourceFile&)) {
  Faults all;
  for (const SourceFile& file : SourceTree()) {
    for (std::string& fault : rule(file)) all.push_back(std::move(fault));
  }
  return all;
}

// A walk that finds nothing would pass every rule.
TEST(TidyTest, ReadsTheTree) {
  std::set<std::string> paths;
  for (const SourceFile& file : SourceTree()) {
    paths.insert(file.path);
    EXPECT_FALSE(file.text.empty()) << file.path;
  }
  EXPECT_THAT(paths,
              IsSupersetOf({"base/page_key.h", "transport/transport.h", "tests/CMakeLists.txt",
                            "proto/forebay/v1/config.proto", "tests/tidy/tidy_test.cc"}));
}

TEST(TidyTest, EveryIncludeFollowsAnAllowedArrow) {
  EXPECT_THAT(Everywhere(LayeringFaults), IsEmpty());
}

TEST(TidyTest, ThirdPartyHeadersStayInTheirFolders) {
  EXPECT_THAT(Everywhere(ThirdPartyFaults), IsEmpty());
}

TEST(TidyTest, NoBannedWord) { EXPECT_THAT(Everywhere(BannedWordFaults), IsEmpty()); }

TEST(TidyTest, FunctionsFilesAndLinesKeepTheirLimits) {
  EXPECT_THAT(Everywhere(LimitFaults), IsEmpty());
}

TEST(TidyTest, EveryHeaderIsIncludedOnce) { EXPECT_THAT(Everywhere(HeaderFaults), IsEmpty()); }

TEST(TidyTest, InterfacesAreSmall) { EXPECT_THAT(Everywhere(InterfaceFaults), IsEmpty()); }

TEST(TidyTest, EveryCitationLeadsSomewhere) { EXPECT_THAT(Everywhere(CitationFaults), IsEmpty()); }

TEST(TidyTest, NoProductTargetLinksFakes) { EXPECT_THAT(Everywhere(TestingLinkFaults), IsEmpty()); }

TEST(TidyTest, EverySourceIsInABuildFile) {
  EXPECT_THAT(UnregisteredSourceFaults(SourceTree()), IsEmpty());
}

TEST(TidyTest, FailpointsAreUniqueListedAndArmed) {
  EXPECT_THAT(FailpointFaults(SourceTree(), ReadFile("docs/operations.md")), IsEmpty());
}

TEST(TidyTest, MetricsAreListed) {
  EXPECT_THAT(MetricFaults(SourceTree(), ReadFile("docs/operations.md")), IsEmpty());
}

}  // namespace
}  // namespace forebay::tidy
