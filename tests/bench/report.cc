#include "tests/bench/report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace forebay::bench {
namespace {

std::string SizeText(uint64_t bytes) {
  if (bytes >= (1 << 20) && bytes % (1 << 20) == 0) return absl::StrCat(bytes >> 20, " MiB");
  if (bytes >= (1 << 10) && bytes % (1 << 10) == 0) return absl::StrCat(bytes >> 10, " KiB");
  return absl::StrCat(bytes);
}

}  // namespace

void Report::Section(const std::string& title) {
  if (json_) return;
  out_ << "\n" << title << "\n";
  out_ << absl::StrFormat("  %-22s %-7s %9s %12s %-8s %10s %7s %7s  %s\n", "what", "path", "size",
                          "value", "unit", "ceiling", "ratio", "spread", "against");
}

void Report::Add(const Figure& figure) {
  figures_.push_back(figure);
  if (json_) {
    out_ << absl::StrFormat(
                "{\"name\": \"%s\", \"path\": \"%s\", \"bytes\": %d, \"value\": %.6g, "
                "\"unit\": \"%s\", \"ceiling\": %.6g, \"ceiling_name\": \"%s\", \"ratio\": %.4g, "
                "\"spread\": %.4g, \"evidence\": \"%s\"}\n",
                figure.name, figure.path, figure.bytes, figure.value, figure.unit, figure.ceiling,
                figure.ceiling_name, figure.ratio, figure.spread, figure.evidence)
         << std::flush;
    return;
  }
  out_ << absl::StrFormat("  %-22s %-7s %9s %12.3f %-8s %10s %7s %6.0f%%  %s\n", figure.name,
                          figure.path, SizeText(figure.bytes), figure.value, figure.unit,
                          figure.ceiling > 0 ? absl::StrFormat("%.3f", figure.ceiling) : "-",
                          figure.ceiling > 0 ? absl::StrFormat("%.2f", figure.ratio) : "-",
                          100 * figure.spread,
                          figure.note.empty() ? figure.ceiling_name
                                              : absl::StrCat(figure.ceiling_name, " ", figure.note))
       << std::flush;
}

void Report::Text(const std::string& line) {
  if (!json_) out_ << line << std::endl;
}

void Report::Json(const std::string& line) {
  if (json_) out_ << line << std::endl;
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  const double part = at - static_cast<double>(low);
  return values[low] * (1 - part) + values[high] * part;
}

double Median(std::vector<double> values) { return Quantile(std::move(values), 0.5); }

double Spread(const std::vector<double>& values) {
  const double median = Median(values);
  if (median == 0) return 0;
  return (Quantile(values, 0.75) - Quantile(values, 0.25)) / median;
}

Figure PairedRounds::ToFigure() const {
  std::vector<double> ratios;
  for (size_t i = 0; i < ours.size() && i < ceiling.size(); ++i) {
    ratios.push_back(ours[i] / ceiling[i]);
  }
  Figure figure;
  figure.value = Median(ours);
  figure.ceiling = Median(ceiling);
  figure.ratio = Median(ratios);
  figure.spread = Spread(ratios.empty() ? ours : ratios);
  return figure;
}

}  // namespace forebay::bench
