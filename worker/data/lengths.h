// Distributions of sequence length, for synthetic data: real post-training sets have many short
// samples and a few very long ones, which is what makes workers wait for each other.
//
//   uniform:LO:HI                     whole numbers from LO to HI
//   lognormal:MU:SIGMA:LO:HI          exp(normal(MU, SIGMA)), drawn again until within [LO, HI]
//   longalign | swe-smith | aime      truncated lognormals fitted to those data sets (10 % / 50 % /
//   90 % / 99 % quantiles
//                                     5.1K/13.1K/32.9K/56.7K, 12.4K/28.6K/65K/109K
//                                     and 3.8K/8.0K/16.0K/22.5K tokens)
//   NAME:SCALE                        ... with every length multiplied, e.g. longalign:0.01
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/random.h"

namespace shoal::worker {

class LengthDistribution {
 public:
  // InvalidArgument names what is wrong and the forms there are.
  static absl::StatusOr<LengthDistribution> Parse(std::string_view text);
  static LengthDistribution Uniform(int64_t low, int64_t high) { return {false, 0, 0, low, high}; }
  static LengthDistribution Lognormal(double mu, double sigma, int64_t low, int64_t high) {
    return {true, mu, sigma, low, high};
  }

  // In tokens, within [low(), high()].
  int64_t Draw(Random& random) const;

  int64_t low() const { return low_; }
  int64_t high() const { return high_; }

 private:
  LengthDistribution(bool lognormal, double mu, double sigma, int64_t low, int64_t high)
      : lognormal_(lognormal), mu_(mu), sigma_(sigma), low_(low), high_(high) {}

  bool lognormal_;
  double mu_;
  double sigma_;
  int64_t low_;
  int64_t high_;
};

}  // namespace shoal::worker
