#include "worker/loss/preference.h"

#include <algorithm>
#include <cmath>

namespace shoal::worker {
namespace {

double Sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}
// ln sigmoid(x), without cancellation.
double LogSigmoid(double x) { return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x))); }

// Of a loss of one number that grows with sums.chosen by `chosen` and falls with sums.rejected by
// `rejected`.
PairLoss Along(double loss, double derivative, double chosen = 1, double rejected = 1) {
  return {loss, derivative * chosen, -derivative * rejected};
}

PairLoss Sigmoid(double beta, double margin) {
  return Along(-LogSigmoid(beta * margin), -beta * Sigmoid(-beta * margin));
}

PairLoss Hinge(double beta, double margin) {
  const double left = 1 - beta * margin;
  return left <= 0 ? PairLoss() : Along(left, -beta);  // NaN stays
}

// Rafailov's loss without bias where a part of the pairs is the wrong way round.
PairLoss Robust(double beta, double flipped, double margin) {
  const double x = beta * margin;
  const double loss = -(1 - flipped) * LogSigmoid(x) + flipped * LogSigmoid(-x);
  const double slope = -beta * ((1 - flipped) * Sigmoid(-x) + flipped * Sigmoid(x));
  return Along(loss / (1 - 2 * flipped), slope / (1 - 2 * flipped));
}

// Of log-probabilities per token, of which the probability lies below 1.
PairLoss OddsRatio(double lambda, const PairSums& sums) {
  const auto n_chosen = static_cast<double>(sums.chosen_targets);
  const auto n_rejected = static_cast<double>(sums.rejected_targets);
  constexpr double kLeast = -1e-12;  // a probability of 1 has no odds
  const double chosen = std::min(sums.chosen / n_chosen, kLeast);
  const double rejected = std::min(sums.rejected / n_rejected, kLeast);
  const double rest_chosen = -std::expm1(chosen);
  const double rest_rejected = -std::expm1(rejected);
  const double odds = chosen - rejected - std::log(rest_chosen) + std::log(rest_rejected);
  const double slope = -lambda * Sigmoid(-odds);
  return {-lambda * LogSigmoid(odds), slope / (rest_chosen * n_chosen),
          -slope / (rest_rejected * n_rejected)};
}

// The negative log-likelihood of a token of what was chosen, times a weight.
void AddLikelihood(double weight, const PairSums& sums, PairLoss& loss) {
  const double each = weight / static_cast<double>(sums.chosen_targets);
  loss.loss -= each * sums.chosen;
  loss.d_chosen -= each;
}

PairLoss Compare(const plan::PreferenceOptions& options, const PairSums& sums) {
  const double beta = options.beta;
  const double chosen = sums.chosen - sums.reference_chosen;
  const double rejected = sums.rejected - sums.reference_rejected;
  const double per_chosen = 1 / static_cast<double>(sums.chosen_targets);
  const double per_rejected = 1 / static_cast<double>(sums.rejected_targets);
  const double mean_margin = chosen * per_chosen - rejected * per_rejected;
  switch (options.loss) {
    case plan::PreferenceLoss::kSigmoid:
      return Sigmoid(beta, chosen - rejected);
    case plan::PreferenceLoss::kHinge:
      return Hinge(beta, chosen - rejected);
    case plan::PreferenceLoss::kIpo: {
      const double off = mean_margin - 1 / (2 * beta);
      return Along(off * off, 2 * off, per_chosen, per_rejected);
    }
    case plan::PreferenceLoss::kRobust:
      return Robust(beta, options.label_smoothing, chosen - rejected);
    case plan::PreferenceLoss::kSimpo: {
      const double x = beta * mean_margin - options.gamma;
      return Along(-LogSigmoid(x), -beta * Sigmoid(-x), per_chosen, per_rejected);
    }
    case plan::PreferenceLoss::kOrpo: {
      PairLoss loss = OddsRatio(options.lambda, sums);
      AddLikelihood(1, sums, loss);
      return loss;
    }
  }
  return {};
}

}  // namespace

PairLoss LossOfPair(const plan::PreferenceOptions& options, const PairSums& sums) {
  PairLoss loss = Compare(options, sums);
  AddLikelihood(options.sft_weight, sums, loss);
  return loss;
}

}  // namespace shoal::worker
