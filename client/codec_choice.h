#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "base/quality.h"

namespace forebay {

// What one codec costs and saves on this machine. Rates count raw bytes.
struct CodecRates {
  double ratio = 1;                // raw bytes over payload bytes
  double encode_bytes_per_ns = 0;  // 0: at no cost
  double decode_bytes_per_ns = 0;
};

// A codec among which to choose.
struct CodecCandidate {
  std::string name;
  QualityBound quality;
  CodecRates rates;
};

// What a path gives: between the memories of two processes, through one daemon.
struct PathRates {
  double bytes_per_ns = 0;       // of payload
  Nanos latency_ns = 0;          // of one message
  double copy_bytes_per_ns = 0;  // at which an end moves payload; 0: at no cost
  int codec_threads = 0;         // that encode, and decode at the other end, beside what moves
                                 // payload; 0: the same core does both
  int processors = 0;            // of each end, for all of that; 0: enough
  bool same_host = false;        // the two ends have one set of processors
  bool shared_memory = false;    // crossing is a copy by each end, counted as one
};

// What a codec would take: the model's terms, for people.
struct CodecEstimate {
  std::string name;
  bool allowed = false;  // by the quality contract
  double ratio = 1;
  Nanos encode_ns = 0;  // of all the bytes, alone
  Nanos cross_ns = 0;
  Nanos decode_ns = 0;
  Nanos total_ns = 0;  // pipelined
};

struct CodecChoice {
  std::string name;
  std::string reason;                    // "int4: 0.30 of raw's time; …"
  std::vector<CodecEstimate> estimates;  // of every candidate, in their order
};

// Chooses the codec of the least predicted time for `raw_bytes` that are encoded, cross and are
// decoded in chunks of `chunk_bytes`, so that the three overlap:
//
//   T = latency + e + x + d + (N - 1) * max(e, x, d)   of one chunk
//
// An end encodes or decodes on threads of its own, at so many times the rate of one, while it moves
// payload; or, without any and over shared memory, in turns with that. Nor is an end sooner done
// than its processors can be with all of it.
//
// Candidates come the most exact first. One that is less exact is taken only where it saves over 5%
// against the next more exact choice, and another than `current` (empty: none) only where that
// saves over 10%: so ties go to fidelity, and noise changes nothing. Raw must be among the
// candidates, and the first. What is newly taken saves over 15%
// against raw, and what stays over 5%.
//
// Source   the pipelined link model of the project's design; a pure function.
CodecChoice ChooseCodec(absl::Span<const CodecCandidate> candidates, const QualityBound& bound,
                        const PathRates& path, uint64_t raw_bytes, uint64_t chunk_bytes,
                        const std::string& current);

}  // namespace forebay
