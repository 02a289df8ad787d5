#include "core/data/prepare.h"

#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/base/threads/thread_pool.h"
#include "core/data/documents/cutter.h"
#include "core/data/jsonl.h"
#include "core/data/sample_reader.h"
#include "core/data/token_file.h"

namespace shoal::worker {
namespace {

constexpr size_t kBatchLines = 512;
constexpr size_t kBatchBytes = size_t{16} << 20;

struct Line {
  std::string text;
  bool is_text = false;  // of a document, and no JSON
  std::string where;
  absl::StatusOr<std::vector<EncodedSample>> encoded = absl::UnknownError("not encoded yet");
};

// Reads lines until the batch is full; an empty batch means the end.
absl::Status ReadBatch(SampleReader& reader, std::vector<Line>& batch) {
  batch.clear();
  size_t bytes = 0;
  while (batch.size() < kBatchLines && bytes < kBatchBytes) {
    SHOAL_ASSIGN_OR_RETURN(const std::optional<std::string_view> line, reader.Next());
    if (!line.has_value()) {
      break;
    }
    bytes += line->size();
    Line& entry = batch.emplace_back();
    entry.text = std::string(*line);
    entry.is_text = reader.is_text();
    entry.where = reader.where();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<EncodedSample>> EncodeLine(const Line& line,
                                                      const SampleEncoder& encoder,
                                                      const JsonlOptions& options) {
  JsonlSample sample;
  if (line.is_text) {
    sample.text = line.text;
  } else {
    SHOAL_ASSIGN_OR_RETURN(sample, ParseJsonlLine(line.text, options, line.where));
  }
  return encoder.Encode(sample, line.where);
}

// Applies the policies and writes.
class Sink {
 public:
  Sink(const PrepareOptions& options, bool documents, formats::TokenFileWriter& writer)
      : options_(options), writer_(writer) {
    if (documents) {
      cutter_.emplace(options.documents, options.max_sequence_tokens,
                      [this](std::span<const int32_t> tokens, std::span<const float> weights) {
                        return Write(SampleOfText(tokens, weights));
                      });
    }
  }

  absl::Status Add(EncodedSample sample, const std::string& where) {
    if (sample.silent > 0) {
      summary_.silent_messages += sample.silent;
      Note(where, summary_.first_silent);
    }
    if (sample.rewritten) {
      ++summary_.rewritten;
      Note(where, summary_.first_rewritten);
    }
    if (sample.targets == 0) {
      ++summary_.skipped_no_target;
      Note(where, summary_.first_no_target);
      return absl::OkStatus();
    }
    if (cutter_.has_value()) {
      ++summary_.documents;
      return cutter_->Add(sample.tokens, sample.weights.empty() ? 1 : sample.weights.front());
    }
    if (const std::string too_long = WhyTooLong(sample); !too_long.empty()) {
      if (options_.oversize == plan::OversizePolicy::kError) {
        return InvalidArgument("{}: {}; raise that, or set oversize: skip or truncate", where,
                               too_long);
      }
      Truncate(sample, MostTokens(sample));
      if (options_.oversize == plan::OversizePolicy::kSkip || sample.targets == 0) {
        ++summary_.skipped_oversize;
        Note(where, summary_.first_oversize);
        return absl::OkStatus();
      }
      ++summary_.truncated;
      Note(where, summary_.first_truncated);
    }
    return Write(sample);
  }

  absl::Status Finish() { return cutter_.has_value() ? cutter_->Finish() : absl::OkStatus(); }

  const PrepareSummary& summary() const { return summary_; }

 private:
  bool IsBounded(const EncodedSample& sample) const {
    return sample.chosen.tokens > 0 && options_.microbatch_tokens > 0;
  }
  // Of each of its sequences, once cut.
  int64_t MostTokens(const EncodedSample& sample) const {
    return IsBounded(sample)
               ? std::min(options_.max_sequence_tokens, options_.microbatch_tokens / 2)
               : options_.max_sequence_tokens;
  }
  // Of its one sequence, or of a pair's two.
  static int64_t Longest(const EncodedSample& sample) {
    const int64_t first = sample.chosen.tokens;
    return std::max(first, std::ssize(sample.tokens) - first);
  }
  std::string WhyTooLong(const EncodedSample& sample) const {
    const int64_t length = std::ssize(sample.tokens);
    if (const int64_t longest = Longest(sample); longest > options_.max_sequence_tokens) {
      return fmt::format("the sample has {} tokens, more than max_sequence_tokens {}", longest,
                         options_.max_sequence_tokens);
    }
    return IsBounded(sample) && length > options_.microbatch_tokens
               ? fmt::format("the pair has {} tokens, more than microbatch_tokens {}", length,
                             options_.microbatch_tokens)
               : "";
  }

  absl::Status Write(const EncodedSample& sample) {
    ++summary_.samples;
    summary_.tokens += std::ssize(sample.tokens);
    summary_.targets += sample.targets;
    summary_.longest = std::max(summary_.longest, Longest(sample));
    summary_.weighted += sample.weights.empty() ? 0 : 1;
    return writer_.Add(
        {sample.tokens, sample.labels, sample.targets, sample.weights, sample.chosen});
  }

  static void Note(const std::string& where, std::string& first) {
    if (first.empty()) {
      first = where;
    }
  }

  const PrepareOptions& options_;
  formats::TokenFileWriter& writer_;
  PrepareSummary summary_;
  std::optional<DocumentCutter> cutter_;  // of documents
};

std::string WhyNoSample(const SampleReader& reader, const PrepareSummary& summary, bool documents) {
  if (reader.bytes_total() == 0) {
    return "the file is empty";
  }
  if (documents) {
    return "all its documents are empty, or weigh 0";
  }
  if (summary.skipped_no_target + summary.skipped_oversize == 0) {
    return "all its lines are blank";
  }
  return Describe(summary) +
         (summary.skipped_no_target > 0
              ? "; what is learnt is a completion, an assistant's message or the labels"
              : "; raise max_sequence_tokens");
}

// Names the template, where all that the assistant said got lost in it.
absl::Status CheckSomethingIsSaid(const std::string& input, const SampleEncoder& encoder,
                                  const PrepareSummary& summary) {
  const OwnTemplate* own = encoder.chat().has_value() ? encoder.chat()->own() : nullptr;
  return own == nullptr || summary.silent_messages == 0
             ? absl::OkStatus()
             : InvalidArgument(
                   "{}: no assistant text is left in any render of {}; does it expect content as "
                   "a list?",
                   input, own->name());
}

}  // namespace

PrepareOptions PrepareOptionsOf(const plan::DataOptions& data) {
  PrepareOptions options;
  options.fields = data.fields;
  options.max_sequence_tokens = data.max_sequence_tokens;
  options.oversize = data.oversize;
  options.documents = data.documents;
  options.microbatch_tokens = data.microbatch_tokens;
  return options;
}

std::string Describe(const PrepareSummary& summary) {
  const std::string of =
      summary.documents > 0 ? fmt::format(" of {} documents", summary.documents) : "";
  std::string text =
      fmt::format("{} samples{}, {} tokens, {} of them targets, the longest sample {} tokens",
                  summary.samples, of, summary.tokens, summary.targets, summary.longest);
  if (summary.weighted > 0) {
    text += fmt::format("; {} with weights", summary.weighted);
  }
  const auto add = [&](int64_t count, std::string_view what, const std::string& first) {
    if (count > 0) {
      text += fmt::format("; {} {}, first {}", count, what, first);
    }
  };
  add(summary.truncated, "truncated", summary.first_truncated);
  add(summary.skipped_oversize, "skipped as too long", summary.first_oversize);
  add(summary.skipped_no_target, "skipped for having no target token", summary.first_no_target);
  add(summary.silent_messages, "messages of the assistant left out by the template",
      summary.first_silent);
  add(summary.rewritten,
      "of which the template writes earlier replies otherwise once others follow (data.train_on: "
      "each learns them as they are generated)",
      summary.first_rewritten);
  return text;
}

absl::StatusOr<PrepareSummary> Prepare(const std::string& input, const std::string& output,
                                       const SampleEncoder& encoder,
                                       const PrepareOptions& options) {
  SHOAL_CHECK(options.max_sequence_tokens > 0);
  SHOAL_RETURN_IF_ERROR(CheckFields(options.fields));
  const bool documents = encoder.learning().objective == plan::Objective::kPretrain;
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<SampleReader> reader,
                         SampleReader::Open(input, documents));
  const uint64_t tokenizer_hash = encoder.tokenizer() == nullptr ? 0 : encoder.tokenizer()->hash();
  SHOAL_ASSIGN_OR_RETURN(const auto writer, formats::TokenFileWriter::Create(
                                                output, encoder.vocabulary(), tokenizer_hash));
  const JsonlOptions jsonl{options.fields, encoder.vocabulary(), encoder.learning().objective};
  Sink sink(options, documents, *writer);
  ThreadPool pool(options.threads);
  std::vector<Line> batch;
  while (true) {
    SHOAL_RETURN_IF_ERROR(ReadBatch(*reader, batch));
    if (batch.empty()) {
      break;
    }
    pool.ParallelFor(static_cast<int64_t>(batch.size()), 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Line& line = batch[static_cast<size_t>(i)];
        line.encoded = EncodeLine(line, encoder, jsonl);
      }
    });
    for (Line& line : batch) {
      SHOAL_RETURN_IF_ERROR(line.encoded.status());
      for (EncodedSample& sample : *line.encoded) {
        SHOAL_RETURN_IF_ERROR(sink.Add(std::move(sample), line.where));
      }
    }
    if (options.progress) {
      options.progress(reader->bytes_read(), reader->bytes_total());
    }
  }
  SHOAL_RETURN_IF_ERROR(sink.Finish());
  if (sink.summary().samples == 0) {
    SHOAL_RETURN_IF_ERROR(CheckSomethingIsSaid(input, encoder, sink.summary()));
    return InvalidArgument("{}: no sample to train on: {}", input,
                           WhyNoSample(*reader, sink.summary(), documents));
  }
  SHOAL_RETURN_IF_ERROR(writer->Finish());
  return sink.summary();
}

}  // namespace shoal::worker
