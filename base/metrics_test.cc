#include "base/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace forebay {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Labels = std::vector<MetricRegistry::Label>;

TEST(MetricsTest, TextIsSortedAndEscaped) {
  MetricRegistry registry;
  registry.AddGauge("forebay_pinned_bytes", "Bytes pinned\nnow \\.").Set(-3);
  registry.AddCounter("forebay_hits_total", "Hits.", Labels{{"tier", "dram"}, {"who", "a\"b\\c\n"}})
      .Add(5);
  EXPECT_EQ(registry.Text(),
            "# HELP forebay_hits_total Hits.\n"
            "# TYPE forebay_hits_total counter\n"
            "forebay_hits_total{tier=\"dram\",who=\"a\\\"b\\\\c\\n\"} 5\n"
            "# HELP forebay_pinned_bytes Bytes pinned\\nnow \\\\.\n"
            "# TYPE forebay_pinned_bytes gauge\n"
            "forebay_pinned_bytes -3\n");
}

// Each reactor adds to a series of its own; the reader sees one.
TEST(MetricsTest, SeriesWithEqualLabelsAreSummed) {
  MetricRegistry registry;
  Counter& first = registry.AddCounter("forebay_hits_total", "Hits.", Labels{{"tier", "dram"}});
  Counter& second = registry.AddCounter("forebay_hits_total", "Hits.", Labels{{"tier", "dram"}});
  Counter& other = registry.AddCounter("forebay_hits_total", "Hits.", Labels{{"tier", "nvme"}});
  first.Add(1);
  second.Add(2);
  other.Add(4);
  EXPECT_NE(&first, &second);
  EXPECT_EQ(registry.Text(),
            "# HELP forebay_hits_total Hits.\n"
            "# TYPE forebay_hits_total counter\n"
            "forebay_hits_total{tier=\"dram\"} 3\n"
            "forebay_hits_total{tier=\"nvme\"} 4\n");
  EXPECT_THAT(registry.Names(), ElementsAre("forebay_hits_total"));
}

TEST(MetricsTest, AHistogramIsCumulative) {
  MetricRegistry registry;
  Histogram& histogram =
      registry.AddHistogram("forebay_get_ns", "Time.", Labels{{"path", "local"}});
  for (const uint64_t value : {0, 1, 2, 3, 4, 1000}) histogram.Add(value);
  histogram.Add(UINT64_MAX / 2);
  const std::string text = registry.Text();
  EXPECT_THAT(text, HasSubstr("# TYPE forebay_get_ns histogram\n"
                              "forebay_get_ns_bucket{path=\"local\",le=\"0\"} 1\n"
                              "forebay_get_ns_bucket{path=\"local\",le=\"1\"} 2\n"
                              "forebay_get_ns_bucket{path=\"local\",le=\"3\"} 4\n"
                              "forebay_get_ns_bucket{path=\"local\",le=\"7\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("{path=\"local\",le=\"511\"} 5\n"
                              "forebay_get_ns_bucket{path=\"local\",le=\"1023\"} 6\n"));
  EXPECT_THAT(text, HasSubstr("{path=\"local\",le=\"+Inf\"} 7\n"
                              "forebay_get_ns_sum{path=\"local\"} 9223372036854776817\n"
                              "forebay_get_ns_count{path=\"local\"} 7\n"));
}

TEST(MetricsTest, QuantilesAreBoundsOfTheirBuckets) {
  Histogram histogram;
  EXPECT_EQ(histogram.Quantile(0.5), 0u);
  for (int i = 0; i < 99; ++i) histogram.Add(100);
  histogram.Add(5000);
  EXPECT_EQ(histogram.Quantile(0), 127u);
  EXPECT_EQ(histogram.Quantile(0.5), 127u);
  EXPECT_EQ(histogram.Quantile(0.99), 127u);
  EXPECT_EQ(histogram.Quantile(1), 8191u);
  EXPECT_EQ(histogram.count(), 100u);
  EXPECT_EQ(histogram.sum(), 99u * 100 + 5000);
}

TEST(MetricsDeathTest, OneNameIsOneKind) {
  MetricRegistry registry;
  registry.AddCounter("forebay_hits_total", "Hits.");
  EXPECT_DEATH(registry.AddGauge("forebay_hits_total", "Hits."), "check failed");
  EXPECT_DEATH(registry.AddGauge("forebay hits", "Hits."), "check failed");
}

}  // namespace
}  // namespace forebay
