#include "worker/data/inspect.h"

#include <algorithm>
#include <bit>

#include "common/check.h"
#include "common/status.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"
#include "plan/step_plan.h"

namespace shoal::worker {
namespace {

constexpr std::string_view kTargetColour = "\033[32;1m";
constexpr std::string_view kContextColour = "\033[2m";
constexpr std::string_view kNoColour = "\033[0m";

double Ratio(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

// Text whose control characters are written as \xNN.
std::string Printable(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // C1 controls are U+0080 to U+009F, two bytes with the lead C2.
    const bool c1 =
        byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (c1) {
      out += fmt::format("\\x{:02X}", static_cast<unsigned char>(text[++i]));
    } else if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F) {
      out += fmt::format("\\x{:02X}", byte);
    } else {
      out += text[i];
    }
  }
  return out;
}

// The text of tokens [begin, end). Decoded from the sample's start, since decoders treat the first
// token differently.
std::string RunText(const Tokenizer* tokenizer, std::span<const int32_t> tokens, size_t begin,
                    size_t end, std::string& before) {
  if (tokenizer == nullptr) {
    return fmt::format("{}", fmt::join(tokens.subspan(begin, end - begin), " "));
  }
  std::string whole = tokenizer->Decode(tokens.first(end), false);
  // A character cut in two by the mask makes the longer text differ from the shorter one's end.
  const bool extends =
      whole.size() >= before.size() && whole.compare(0, before.size(), before) == 0;
  std::string text = extends ? whole.substr(before.size())
                             : tokenizer->Decode(tokens.subspan(begin, end - begin), false);
  before = std::move(whole);
  return text;
}

}  // namespace

LengthReport ReportLengths(const formats::TokenFile& file) {
  LengthReport report;
  report.samples = file.samples();
  std::vector<int64_t> lengths;
  lengths.reserve(static_cast<size_t>(file.samples()));
  for (int64_t i = 0; i < file.samples(); ++i) {
    lengths.push_back(file.tokens(i));
    report.tokens += file.tokens(i);
    report.targets += file.targets(i);
  }
  if (lengths.empty()) {
    return report;
  }
  std::sort(lengths.begin(), lengths.end());
  const auto quantile = [&](double q) {
    return lengths[static_cast<size_t>(q * static_cast<double>(lengths.size() - 1))];
  };
  report.shortest = lengths.front();
  report.p50 = quantile(0.5);
  report.p90 = quantile(0.9);
  report.p99 = quantile(0.99);
  report.longest = lengths.back();
  const auto bucket_of = [](int64_t length) {
    return std::bit_width(static_cast<uint64_t>(std::max<int64_t>(length, 1))) - 1;
  };
  const auto first = bucket_of(report.shortest);
  for (auto b = first; b <= bucket_of(report.longest); ++b) {
    report.buckets.push_back({.low = int64_t{1} << b});
  }
  for (const int64_t length : lengths) {
    LengthReport::Bucket& bucket = report.buckets[static_cast<size_t>(bucket_of(length) - first)];
    ++bucket.samples;
    bucket.tokens += length;
  }
  return report;
}

std::string ToText(const LengthReport& report, int columns) {
  std::string text =
      fmt::format("{} samples, {} tokens, {} of them targets ({:.0f}%)\n", report.samples,
                  report.tokens, report.targets, 100 * Ratio(report.targets, report.tokens)) +
      fmt::format("tokens of a sample: shortest {}, median {}, 90% {}, 99% {}, longest {}\n",
                  report.shortest, report.p50, report.p90, report.p99, report.longest);
  int64_t most = 1;
  for (const LengthReport::Bucket& bucket : report.buckets) {
    most = std::max(most, bucket.samples);
  }
  constexpr int kLabelColumns = 46;
  const int width = std::max(10, columns - kLabelColumns);
  for (const LengthReport::Bucket& bucket : report.buckets) {
    const auto length =
        static_cast<size_t>(Ratio(bucket.samples, most) * width + (bucket.samples > 0 ? 0.999 : 0));
    text +=
        fmt::format("{:>7} - {:<7} {:>8} ({:>3.0f}% of tokens) {}\n", bucket.low,
                    2 * bucket.low - 1, bucket.samples, 100 * Ratio(bucket.tokens, report.tokens),
                    std::string(std::min(length, static_cast<size_t>(width)), '#'));
  }
  return text;
}

nlohmann::json ToJson(const LengthReport& report) {
  nlohmann::json buckets = nlohmann::json::array();
  for (const LengthReport::Bucket& bucket : report.buckets) {
    buckets.push_back(
        {{"low", bucket.low}, {"samples", bucket.samples}, {"tokens", bucket.tokens}});
  }
  return {{"samples", report.samples},   {"tokens", report.tokens},   {"targets", report.targets},
          {"shortest", report.shortest}, {"p50", report.p50},         {"p90", report.p90},
          {"p99", report.p99},           {"longest", report.longest}, {"buckets", buckets}};
}

absl::StatusOr<PackingReport> ReportPacking(const formats::TokenFile& file,
                                            const PackingOptions& options,
                                            const plan::SequenceCost& cost) {
  SHOAL_CHECK(options.steps > 0 && options.workers > 0 && options.minibatch_samples > 0);
  PackingReport report;
  report.steps = options.steps;
  if (file.samples() == 0) {
    return report;
  }
  report.fewest_microbatches = INT64_MAX;
  int64_t tokens = 0;
  for (int64_t step = 1; step <= options.steps; ++step) {
    std::vector<plan::SampleLength> samples;
    for (const int64_t sample : plan::MinibatchSamples(
             step, options.minibatch_samples, file.samples(), options.seed, options.shuffle)) {
      samples.push_back({sample, file.tokens(sample), file.targets(sample)});
    }
    SHOAL_ASSIGN_OR_RETURN(
        const plan::StepPlan plan,
        plan::PlanStep(samples, {options.workers, options.microbatch_tokens}, cost));
    double total = 0;
    double largest = 0;
    for (const std::vector<plan::Microbatch>& worker : plan.workers) {
      double sum = 0;
      for (const plan::Microbatch& microbatch : worker) {
        sum += microbatch.cost;
      }
      total += sum;
      largest = std::max(largest, sum);
      const auto count = static_cast<int64_t>(worker.size());
      report.microbatches += count;
      report.fewest_microbatches = std::min(report.fewest_microbatches, count);
      report.most_microbatches = std::max(report.most_microbatches, count);
    }
    tokens += plan.tokens;
    report.balance += largest > 0 ? total / options.workers / largest : 1;
  }
  report.balance /= static_cast<double>(options.steps);
  report.fill = Ratio(tokens, report.microbatches * options.microbatch_tokens);
  return report;
}

std::string ToText(const PackingReport& report, const PackingOptions& options) {
  return fmt::format(
      "packed under {} tokens for {} worker{}, {} samples a step, over {} steps: {:.1f} "
      "microbatches a step ({} to {} per "
      "worker), {:.0f}% full, balance {:.0f}%\n",
      options.microbatch_tokens, options.workers, options.workers == 1 ? "" : "s",
      options.minibatch_samples, report.steps, Ratio(report.microbatches, report.steps),
      report.fewest_microbatches, report.most_microbatches, 100 * report.fill,
      100 * report.balance);
}

nlohmann::json ToJson(const PackingReport& report) {
  return {{"steps", report.steps},
          {"microbatches", report.microbatches},
          {"fewest_microbatches", report.fewest_microbatches},
          {"most_microbatches", report.most_microbatches},
          {"fill", report.fill},
          {"balance", report.balance}};
}

absl::StatusOr<std::vector<MaskedRun>> ReportSample(const formats::TokenFile& file, int64_t sample,
                                                    const Tokenizer* tokenizer) {
  SHOAL_ASSIGN_OR_RETURN(const formats::TokenSample views, file.Sample(sample));
  // Token i is predicted at position i - 1.
  const auto is_target = [&](size_t i) {
    return i > 0 && views.labels[i - 1] != formats::kIgnoredLabel;
  };
  std::vector<MaskedRun> runs;
  std::string before;
  for (size_t begin = 0; begin < views.tokens.size();) {
    size_t end = begin + 1;
    while (end < views.tokens.size() && is_target(end) == is_target(begin)) {
      ++end;
    }
    runs.push_back({RunText(tokenizer, views.tokens, begin, end, before),
                    static_cast<int64_t>(end - begin), is_target(begin)});
    begin = end;
  }
  return runs;
}

std::string ToText(const std::vector<MaskedRun>& runs, bool colour) {
  std::string text;
  for (const MaskedRun& run : runs) {
    const std::string printable = Printable(run.text);
    if (colour) {
      text += fmt::format("{}{}{}", run.is_target ? kTargetColour : kContextColour, printable,
                          kNoColour);
    } else {
      text += run.is_target ? fmt::format("[[{}]]", printable) : printable;
    }
  }
  return text + "\n";
}

nlohmann::json ToJson(const std::vector<MaskedRun>& runs) {
  nlohmann::json list = nlohmann::json::array();
  for (const MaskedRun& run : runs) {
    list.push_back({{"text", run.text}, {"tokens", run.tokens}, {"target", run.is_target}});
  }
  return list;
}

}  // namespace shoal::worker
