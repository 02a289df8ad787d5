#include "tests/in_process/reference.h"

#include <algorithm>
#include <cmath>

#include "core/base/random.h"
#include "core/base/status.h"
#include "core/data/token_file.h"
#include "core/job/job_model.h"
#include "core/job/job_units.h"
#include "core/model/huggingface/hf_model.h"
#include "core/plan/step/minibatch.h"
#include "core/plan/step/step_plan.h"
#include "worker/model/access/memory_unit_access.h"
#include "worker/model/batch/batch.h"
#include "worker/model/runner.h"

namespace shoal::testing {
namespace {

class AdamW {
 public:
  AdamW(const plan::TrainOptions& options, const std::vector<plan::UnitSpec>& units)
      : options_(options), units_(units) {
    for (const plan::UnitSpec& unit : units) {
      first_.emplace_back(static_cast<size_t>(unit.count), 0.0);
      second_.emplace_back(static_cast<size_t>(unit.count), 0.0);
    }
  }

  // Tensor by tensor, because decay is for matrices alone.
  void Update(int64_t step, double clip, size_t unit, std::span<const float> gradient,
              std::span<float> weights) {
    const double rate = plan::LearningRateAt(options_, step);
    const double bias1 = 1 - std::pow(options_.beta1, static_cast<double>(step));
    const double bias2 = 1 - std::pow(options_.beta2, static_cast<double>(step));
    for (const plan::TensorSpec& tensor : units_[unit].tensors) {
      const double decay = tensor.decays() ? options_.weight_decay : 0;
      for (int64_t at = tensor.offset; at < tensor.offset + tensor.count(); ++at) {
        const auto i = static_cast<size_t>(at);
        const double g = clip * static_cast<double>(gradient[i]);
        double& m = first_[unit][i];
        double& v = second_[unit][i];
        m = options_.beta1 * m + (1 - options_.beta1) * g;
        v = options_.beta2 * v + (1 - options_.beta2) * g * g;
        const double step_by = m / bias1 / (std::sqrt(v / bias2) + options_.epsilon);
        weights[i] = static_cast<float>(static_cast<double>(weights[i]) * (1 - rate * decay) -
                                        rate * step_by);
      }
    }
  }

 private:
  const plan::TrainOptions options_;
  const std::vector<plan::UnitSpec> units_;
  std::vector<std::vector<double>> first_;
  std::vector<std::vector<double>> second_;
};

// Of the job's model, and of its adapters where it has some.
absl::StatusOr<worker::MemoryUnitSource> LoadWeights(const formats::HfModel& folder,
                                                     const plan::ModelSpec& spec,
                                                     const std::vector<plan::UnitSpec>& units,
                                                     const plan::Job& job) {
  plan::UnitReader adapters;
  if (!spec.adapters.empty()) {
    SHOAL_ASSIGN_OR_RETURN(adapters, plan::InitialAdapters(spec, job));
  }
  return worker::MemoryUnitSource::Load(
      units, DType::kF32, [&](int unit, int64_t offset, std::span<float> out) {
        const bool adapted = units[static_cast<size_t>(unit)].kind == plan::UnitKind::kAdapter;
        return adapted ? adapters(unit, offset, out) : folder.ReadUnit(unit, offset, out);
      });
}

}  // namespace

absl::StatusOr<ReferenceRun> TrainReference(const plan::Job& job, const std::string& token_file,
                                            Normaliser normaliser) {
  SHOAL_ASSIGN_OR_RETURN(const auto file, formats::TokenFile::Open(token_file));
  SHOAL_ASSIGN_OR_RETURN(const auto folder, formats::HfModel::Open(job.model));
  SHOAL_ASSIGN_OR_RETURN(const plan::ModelSpec spec, plan::WithJobAdapters(folder->spec(), job));
  SHOAL_ASSIGN_OR_RETURN(const auto model, worker::Transformer::Create(spec, {.threads = 1}));
  const std::vector<plan::UnitSpec> units = plan::JobUnits(spec, job.train);
  SHOAL_ASSIGN_OR_RETURN(auto source, LoadWeights(*folder, spec, units, job));
  worker::MemoryGradientSink sink(units);
  AdamW optimizer(job.train, units);
  ReferenceRun run;
  for (int64_t step = 1; step <= job.train.steps; ++step) {
    const std::vector<int64_t> samples = plan::MinibatchSamples(
        step, job.train.minibatch_samples, file->samples(), job.data.seed, job.data.shuffle);
    double weight = 0;
    std::vector<double> weight_of_third(3, 0);
    for (size_t i = 0; i < samples.size(); ++i) {
      weight += file->weight(samples[i]);
      weight_of_third[i % 3] += file->weight(samples[i]);
    }
    sink.Clear();
    double loss = 0;
    for (size_t i = 0; i < samples.size(); ++i) {
      SHOAL_ASSIGN_OR_RETURN(const formats::TokenSample encoded, file->Sample(samples[i]));
      worker::PackedBatch batch;
      batch.Append(encoded.tokens, encoded.labels, encoded.weights);
      if (job.lora.dropout > 0) {
        batch.dropout = {.probability = job.lora.dropout,
                         .seed = job.train.seed,
                         .step = step,
                         .samples = {samples[i]}};
      }
      SHOAL_ASSIGN_OR_RETURN(const worker::MicrobatchResult result,
                             worker::RunMicrobatch(*model, batch,
                                                   normaliser == Normaliser::kMinibatchTargets
                                                       ? 1.0 / weight
                                                       : 1.0 / (3.0 * weight_of_third[i % 3]),
                                                   source, sink));
      loss += result.loss_sum;
    }
    run.losses.push_back(loss / weight);
    double squares = 0;
    for (const plan::UnitSpec& unit : units) {
      for (const float g : sink.gradient(unit.index)) {
        squares += unit.frozen ? 0 : static_cast<double>(g) * static_cast<double>(g);
      }
    }
    run.grad_norms.push_back(std::sqrt(squares));
    const double clip = job.train.clip_norm > 0
                            ? std::min(1.0, job.train.clip_norm / (std::sqrt(squares) + 1e-6))
                            : 1.0;
    for (const plan::UnitSpec& unit : units) {
      if (!unit.frozen) {
        optimizer.Update(step, clip, static_cast<size_t>(unit.index), sink.gradient(unit.index),
                         source.weights(unit.index));
      }
    }
  }
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const std::span<float> weights = source.weights(static_cast<int>(unit));
    run.weights.emplace_back(weights.begin(), weights.end());
  }
  return run;
}

absl::Status WriteSyntheticTokens(const std::string& path, int64_t vocabulary, int64_t samples,
                                  int64_t max_tokens, uint64_t seed) {
  SHOAL_ASSIGN_OR_RETURN(const auto writer,
                         formats::TokenFileWriter::Create(path, vocabulary, /*tokenizer_hash=*/7));
  Random random(seed);
  for (int64_t sample = 0; sample < samples; ++sample) {
    const double u = random.Uniform();
    const auto length = 2 + static_cast<int64_t>(static_cast<double>(max_tokens - 2) * u * u * u);
    std::vector<int32_t> tokens;
    auto next = static_cast<int64_t>(random.Below(static_cast<uint64_t>(vocabulary)));
    for (int64_t i = 0; i < length; ++i) {
      tokens.push_back(static_cast<int32_t>(next));
      next = random.Below(8) == 0
                 ? static_cast<int64_t>(random.Below(static_cast<uint64_t>(vocabulary)))
                 : (next * 3 + 1) % vocabulary;
    }
    std::vector<int32_t> labels(tokens.begin() + 1, tokens.end());
    labels.push_back(formats::kIgnoredLabel);
    if (length > 4) {
      labels[0] = formats::kIgnoredLabel;
    }
    SHOAL_RETURN_IF_ERROR(writer->Add(tokens, labels));
  }
  return writer->Finish();
}

}  // namespace shoal::testing
