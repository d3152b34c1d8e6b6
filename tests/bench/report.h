#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace forebay::bench {

// One figure. `ceiling` is what the hardware or a peer reaches at the same thing in the same run,
// in the same unit; 0 where there is none. For rates the ratio is value / ceiling; for times too,
// so that below 1 is better than the peer.
struct Figure {
  std::string name;    // "fetch", "publish", "lookup"…
  std::string path;    // "local", "tcp", "ucx", "memory"
  uint64_t bytes = 0;  // of one part, or keys of one lookup
  double value = 0;
  std::string unit;  // "GB/s" (1e9 bytes), "us", "Mkeys/s"
  double ceiling = 0;
  std::string ceiling_name;
  double ratio = 0;
  double spread = 0;  // (75th - 25th percentile) / median over the rounds
  std::string evidence = "measured";
  std::string note;
};

// Prints figures as they come: a table for people, or one JSON object a line.
class Report {
 public:
  Report(std::ostream& out, bool json) : out_(out), json_(json) {}
  void Section(const std::string& title);
  void Add(const Figure& figure);
  // A line of a bench with a form of its own, for the one reader or for the other.
  void Text(const std::string& line);
  void Json(const std::string& line);
  const std::vector<Figure>& figures() const { return figures_; }

 private:
  std::ostream& out_;
  bool json_;
  std::vector<Figure> figures_;
};

// Of values measured in rounds.
double Median(std::vector<double> values);
double Quantile(std::vector<double> values, double q);
double Spread(const std::vector<double>& values);

// Rounds in which ours and the ceiling were measured one right after the other, so that a machine
// which is slow for a while is slow for both: the ratio is the median of the rounds' ratios.
struct PairedRounds {
  std::vector<double> ours;
  std::vector<double> ceiling;
  Figure ToFigure() const;
};

}  // namespace forebay::bench
