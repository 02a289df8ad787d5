#include "cli/data/data_inspect.h"

#include <algorithm>
#include <bit>

#include "core/base/status.h"
#include "core/plan/step/cost_model.h"
#include "core/plan/step/step_plan.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace shoal::cli {
namespace {

constexpr int kBarColumns = 40;

int64_t Quantile(const std::vector<int64_t>& sorted, double q) {
  return sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1))];
}

struct MaskedRun {
  bool learnt = false;
  float weight = 1;  // of each of its tokens
  int64_t tokens = 0;
  std::string text;
  const char* side = "";  // of a pair, that begins with it
};

// Cuts the sample, or each sequence of a pair, into runs of all learnt or all context tokens that
// weigh the same; a token that is a label is learnt.
std::vector<MaskedRun> MaskedRuns(const formats::TokenSample& sample,
                                  const worker::Tokenizer* tokenizer) {
  std::vector<MaskedRun> runs;
  size_t begin = 0;
  size_t printed = 0;  // bytes of the text in earlier runs
  const auto learnt = [&](size_t i) {
    return i > 0 && sample.labels[i - 1] != formats::kIgnoredLabel;
  };
  const auto weight = [&](size_t i) {
    return i > 0 && !sample.weights.empty() ? sample.weights[i - 1] : 1.0f;
  };
  for (size_t i = 1; i <= sample.tokens.size(); ++i) {
    if (i < sample.tokens.size() && i != sample.chosen.tokens && learnt(i) == learnt(begin) &&
        weight(i) == weight(begin)) {
      continue;
    }
    MaskedRun run{.learnt = learnt(begin),
                  .weight = weight(begin),
                  .tokens = static_cast<int64_t>(i - begin)};
    if (tokenizer != nullptr) {
      // Decoding a run alone would lose the space before its first word.
      const std::string text =
          tokenizer->Decode(std::span(sample.tokens).first(i), /*skip_special=*/false);
      run.text = text.substr(std::min(printed, text.size()));
      printed = text.size();
    } else {
      run.text =
          fmt::format("{}", fmt::join(std::span(sample.tokens).subspan(begin, i - begin), " "));
    }
    if (sample.chosen.tokens > 0 && (begin == 0 || begin == sample.chosen.tokens)) {
      run.side = begin == 0 ? "chosen" : "rejected";
    }
    runs.push_back(std::move(run));
    begin = i;
  }
  return runs;
}

}  // namespace

LengthSummary SummariseLengths(const formats::TokenFile& file) {
  LengthSummary summary;
  std::vector<int64_t> lengths;
  std::vector<int64_t> by_power(64, 0);
  for (int64_t i = 0; i < file.samples(); ++i) {
    lengths.push_back(file.tokens(i));
    summary.targets += file.targets(i);
    summary.tokens += lengths.back();
    ++by_power[static_cast<size_t>(std::bit_width(static_cast<uint64_t>(lengths.back())))];
  }
  summary.samples = file.samples();
  if (lengths.empty()) {
    return summary;
  }
  std::sort(lengths.begin(), lengths.end());
  summary.shortest = lengths.front();
  summary.median = Quantile(lengths, 0.5);
  summary.p90 = Quantile(lengths, 0.9);
  summary.p99 = Quantile(lengths, 0.99);
  summary.longest = lengths.back();
  const int first = std::bit_width(static_cast<uint64_t>(summary.shortest));
  const int last = std::bit_width(static_cast<uint64_t>(summary.longest));
  for (int power = first; power <= last; ++power) {
    const int64_t low = power == 0 ? 0 : int64_t{1} << (power - 1);
    summary.buckets.push_back(
        {low, power == 0 ? 0 : 2 * low - 1, by_power[static_cast<size_t>(power)]});
  }
  return summary;
}

absl::StatusOr<PackingSummary> SummarisePacking(const formats::TokenFile& file,
                                                int64_t microbatch_tokens,
                                                int64_t minibatch_samples) {
  PackingSummary summary{.microbatch_tokens = microbatch_tokens,
                         .minibatch_samples = minibatch_samples};
  int64_t tokens = 0;
  int64_t padded = 0;
  summary.steps = (file.samples() + minibatch_samples - 1) / minibatch_samples;
  for (int64_t step = 0; step < summary.steps; ++step) {
    std::vector<plan::SampleLength> samples;
    int64_t longest = 0;
    for (int64_t i = step * minibatch_samples;
         i < std::min(file.samples(), (step + 1) * minibatch_samples); ++i) {
      samples.push_back({i, file.tokens(i), file.targets(i)});
      longest = std::max(longest, file.tokens(i));
      tokens += file.tokens(i);
    }
    padded += longest * static_cast<int64_t>(samples.size());
    SHOAL_ASSIGN_OR_RETURN(
        const plan::StepPlan step_plan,
        plan::PlanStep(samples, {.workers = 1, .microbatch_tokens = microbatch_tokens},
                       plan::TokenCost()));
    summary.microbatches += static_cast<int64_t>(step_plan.workers.front().size());
  }
  const auto real = static_cast<double>(tokens);
  summary.packed_fill =
      real / static_cast<double>(std::max<int64_t>(1, summary.microbatches * microbatch_tokens));
  summary.padded_fill = real / static_cast<double>(std::max<int64_t>(1, padded));
  return summary;
}

nlohmann::json ToJson(const LengthSummary& summary) {
  nlohmann::json histogram = nlohmann::json::array();
  for (const LengthSummary::Bucket& bucket : summary.buckets) {
    histogram.push_back({{"low", bucket.low}, {"high", bucket.high}, {"samples", bucket.samples}});
  }
  return {{"shortest", summary.shortest}, {"median", summary.median},   {"p90", summary.p90},
          {"p99", summary.p99},           {"longest", summary.longest}, {"histogram", histogram}};
}

nlohmann::json ToJson(const PackingSummary& summary) {
  return {{"packing",
           {{"microbatch_tokens", summary.microbatch_tokens},
            {"minibatch_samples", summary.minibatch_samples},
            {"steps", summary.steps},
            {"microbatches", summary.microbatches},
            {"packed_fill", summary.packed_fill},
            {"padded_fill", summary.padded_fill}}}};
}

nlohmann::json SampleJson(int64_t index, const formats::TokenSample& sample,
                          const worker::Tokenizer* tokenizer) {
  nlohmann::json runs = nlohmann::json::array();
  for (const MaskedRun& run : MaskedRuns(sample, tokenizer)) {
    runs.push_back({{"learnt", run.learnt}, {"tokens", run.tokens}, {"text", run.text}});
    if (run.weight != 1) {
      runs.back()["weight"] = run.weight;
    }
    if (*run.side != '\0') {
      runs.back()["side"] = run.side;
    }
  }
  return {{"event", "sample"},
          {"sample", index},
          {"tokens", sample.tokens.size()},
          {"target_tokens", sample.targets},
          {"runs", runs}};
}

std::string RenderHistogram(const LengthSummary& summary, const Terminal& terminal) {
  Table table({{"tokens", Table::Align::kRight}, {"samples", Table::Align::kRight}, {""}});
  int64_t most = 1;
  for (const LengthSummary::Bucket& bucket : summary.buckets) {
    most = std::max(most, bucket.samples);
  }
  for (const LengthSummary::Bucket& bucket : summary.buckets) {
    table.Add(
        {fmt::format("{} to {}", bucket.low, bucket.high), WithThousands(bucket.samples),
         std::string(static_cast<size_t>((bucket.samples * kBarColumns + most - 1) / most), '#')});
  }
  return table.Render(terminal) +
         fmt::format("shortest {}, median {}, 90% {}, 99% {}, longest {}\n", summary.shortest,
                     summary.median, summary.p90, summary.p99, summary.longest);
}

std::string RenderPacking(const PackingSummary& summary) {
  return fmt::format(
      "one data pass is {} steps of {} samples: {} microbatches of up to {} tokens, {:.0f}% "
      "filled\n"
      "(padding each minibatch to its longest sample would leave {:.0f}% real tokens)\n",
      summary.steps, summary.minibatch_samples, summary.microbatches, summary.microbatch_tokens,
      100 * summary.packed_fill, 100 * summary.padded_fill);
}

std::string RenderSample(int64_t index, const formats::TokenSample& sample,
                         const worker::Tokenizer* tokenizer, const Terminal& terminal) {
  std::string text = fmt::format(
      "sample {}: {} tokens, {} of them learnt ({}{})\n", index, sample.tokens.size(),
      sample.targets, terminal.colour ? "green" : "between \xE2\x9F\xA6 and \xE2\x9F\xA7",
      sample.weights.empty() ? "" : ", with a weight behind them where it is not 1");
  for (const MaskedRun& run : MaskedRuns(sample, tokenizer)) {
    if (*run.side != '\0') {
      text += fmt::format("{}{}: ", text.ends_with('\n') ? "" : "\n", run.side);
    }
    // Keeps line breaks; no other control character may reach the terminal.
    std::string shown;
    size_t at = 0;
    while (at < run.text.size()) {
      const size_t end = std::min(run.text.find('\n', at), run.text.size());
      shown += MakePrintable(std::string_view(run.text).substr(at, end - at));
      shown += end < run.text.size() ? "\n" : "";
      at = end + 1;
    }
    if (!run.learnt) {
      text += Paint(terminal, Colour::kDim, shown);
    } else {
      text += terminal.colour ? Paint(terminal, Colour::kGreen, shown)
                              : "\xE2\x9F\xA6" + shown + "\xE2\x9F\xA7";
      text += run.weight == 1
                  ? ""
                  : Paint(terminal, Colour::kDim, fmt::format("\xC3\x97{}", run.weight));
    }
  }
  return text + (text.ends_with('\n') ? "" : "\n");
}

}  // namespace shoal::cli
