// The job as a plain struct and as a message: each field of the struct is a key of the message.
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/base/check.h"
#include "core/job/job.h"
#include "core/job/job_schema.h"
#include "google/protobuf/reflection.h"

namespace shoal::plan {
namespace {

using google::protobuf::Reflection;

template <typename J, typename Visit>
void VisitTrain(J& train, const Visit& visit) {
  visit("train.objective", train.objective);
  visit("train.steps", train.steps);
  visit("train.epochs", train.epochs);
  visit("train.minibatch_samples", train.minibatch_samples);
  visit("train.device", train.device);
  visit("train.compute", train.compute);
  visit("train.synchronization", train.synchronization);
  visit("train.learning_rate", train.learning_rate);
  visit("train.schedule", train.schedule);
  visit("train.warmup_steps", train.warmup_steps);
  visit("train.minimum_learning_rate", train.minimum_learning_rate);
  visit("train.decay_steps", train.decay_steps);
  visit("train.decay_shape", train.decay_shape);
  visit("train.decay_power", train.decay_power);
  visit("train.optimizer", train.optimizer);
  visit("train.weight_decay", train.weight_decay);
  visit("train.beta1", train.beta1);
  visit("train.beta2", train.beta2);
  visit("train.epsilon", train.epsilon);
  visit("train.clip_norm", train.clip_norm);
  visit("train.residency", train.residency);
  visit("train.push", train.push);
  visit("train.prefetch_units", train.prefetch_units);
  visit("train.threads_per_worker", train.threads_per_worker);
  visit("train.seed", train.seed);
  visit("train.exact_devices", train.exact_devices);
  visit("train.skip_step.nonfinite", train.skip_step.nonfinite);
  visit("train.skip_step.norm_factor", train.skip_step.norm_factor);
  visit("train.skip_step.window", train.skip_step.window);
  visit("train.early_stop.patience", train.early_stop.patience);
  visit("train.early_stop.minimum_change", train.early_stop.minimum_change);
}

template <typename P, typename Visit>
void VisitPreference(P& preference, const Visit& visit) {
  visit("preference.loss", preference.loss);
  visit("preference.beta", preference.beta);
  visit("preference.label_smoothing", preference.label_smoothing);
  visit("preference.gamma", preference.gamma);
  visit("preference.lambda", preference.lambda);
  visit("preference.sft_weight", preference.sft_weight);
  visit("preference.reference", preference.reference);
}

template <typename S, typename Visit>
void VisitService(S& service, const Visit& visit) {
  visit("service.gradient_type", service.gradient_type);
  visit("service.accumulate", service.accumulate);
  visit("service.memory", service.memory);
  visit("service.partition_bytes", service.partition_bytes);
  visit("service.push_slots", service.push_slots);
  visit("service.transports", service.transports);
  visit("service.threads_per_server", service.threads_per_server);
  visit("service.on_server_loss", service.on_server_loss);
  visit("service.verify_pushes", service.verify_pushes);
  visit("service.replicas", service.replicas);
  visit("service.read_replicas", service.read_replicas);
  visit("service.frozen", service.frozen);
  visit("service.encryption", service.encryption);
  visit("service.rdma.devices", service.rdma.devices);
  visit("service.rdma.gid_index", service.rdma.gid_index);
  visit("service.rdma.mtu", service.rdma.mtu_bytes);
  visit("service.rdma.max_rails", service.rdma.max_rails);
  visit("service.rdma.traffic_class", service.rdma.traffic_class);
  visit("service.rdma.service_level", service.rdma.service_level);
  visit("service.rdma.trusted_network", service.rdma.trusted_network);
}

template <typename P, typename Visit>
void VisitPipeline(P& pipeline, const Visit& visit) {
  visit("cluster.pipeline.stages", pipeline.stages);
  visit("cluster.pipeline.chunks", pipeline.chunks);
  visit("cluster.pipeline.schedule", pipeline.schedule);
  visit("cluster.pipeline.device_memory", pipeline.device_memory);
  visit("cluster.pipeline.host_memory", pipeline.host_memory);
  visit("cluster.pipeline.copy_rate", pipeline.copy_rate);
  auto& pace = pipeline.pace;
  visit("cluster.pipeline.duplex", pace.duplex);
  visit("cluster.pipeline.paired", pace.paired);
  visit("cluster.pipeline.pace.forward_flops", pace.forward_flops);
  visit("cluster.pipeline.pace.backward_input_flops", pace.backward_input_flops);
  visit("cluster.pipeline.pace.backward_weights_flops", pace.backward_weights_flops);
  visit("cluster.pipeline.pace.attention_forward_flops", pace.attention_forward_flops);
  visit("cluster.pipeline.pace.attention_backward_flops", pace.attention_backward_flops);
  visit("cluster.pipeline.pace.head_flops", pace.head_flops);
  visit("cluster.pipeline.pace.elementwise_bytes_per_second", pace.elementwise_bytes_per_second);
  visit("cluster.pipeline.pace.offload_bytes_per_second", pace.offload_bytes_per_second);
  visit("cluster.pipeline.pace.reload_bytes_per_second", pace.reload_bytes_per_second);
  visit("cluster.pipeline.pace.message_bytes_per_second", pace.message_bytes_per_second);
  visit("cluster.pipeline.pace.message_latency_seconds", pace.message_latency_seconds);
}

// Calls `visit` with path and field for fields that are alike in both; ToMessage and JobOf handle
// the others. Enum values have the same numbers in both.
template <typename J, typename Visit>
void VisitFields(J& job, const Visit& visit) {
  visit("model", job.model);
  visit("data.template", job.data.chat_template);
  visit("data.train_on", job.data.train_on);
  visit("data.documents", job.data.documents);
  visit("data.max_sequence_tokens", job.data.max_sequence_tokens);
  visit("data.microbatch_tokens", job.data.microbatch_tokens);
  visit("data.oversize", job.data.oversize);
  visit("data.seed", job.data.seed);
  visit("data.shuffle", job.data.shuffle);
  visit("data.validation.fraction", job.data.validation.fraction);
  visit("data.validation.every_steps", job.data.validation.every_steps);
  visit("data.validation.limit", job.data.validation.limit);
  visit("data.validation.at_start", job.data.validation.at_start);
  visit("plan.assignment", job.plan.assignment);
  visit("plan.cost", job.plan.cost);
  visit("plan.pack_groups", job.plan.pack_groups);
  VisitTrain(job.train, visit);
  visit("lora.rank", job.lora.rank);
  visit("lora.alpha", job.lora.alpha);
  visit("lora.rslora", job.lora.rslora);
  visit("lora.targets", job.lora.targets);
  visit("lora.dropout", job.lora.dropout);
  visit("lora.quantize", job.lora.quantize);
  VisitPreference(job.preference, visit);
  VisitService(job.service, visit);
  visit("cluster.lease_seconds", job.cluster.lease_seconds);
  visit("cluster.start_timeout_seconds", job.cluster.start_timeout_seconds);
  visit("cluster.min_workers", job.cluster.min_workers);
  visit("cluster.grace_seconds", job.cluster.grace_seconds);
  visit("cluster.recovery_timeout_seconds", job.cluster.recovery_timeout_seconds);
  visit("cluster.coordinator_patience_seconds", job.cluster.coordinator_patience_seconds);
  visit("cluster.elastic", job.cluster.elastic);
  visit("cluster.min_servers", job.cluster.min_servers);
  VisitPipeline(job.cluster.pipeline, visit);
  visit("checkpoint.directory", job.checkpoint.directory);
  visit("checkpoint.every_steps", job.checkpoint.every_steps);
  visit("checkpoint.every_seconds", job.checkpoint.every_seconds);
  visit("checkpoint.keep", job.checkpoint.keep);
  visit("checkpoint.export_huggingface", job.checkpoint.export_huggingface);
  visit("checkpoint.best", job.checkpoint.best);
  visit("checkpoint.export_type", job.checkpoint.export_type);
  visit("checkpoint.export_each", job.checkpoint.export_each);
  visit("queue.max_restarts", job.queue.max_restarts);
  visit("log.tensorboard", job.log.tensorboard);
  visit("emulate.device_flops", job.emulate.device_flops);
  visit("emulate.time_scale", job.emulate.time_scale);
  visit("emulate.speeds", job.emulate.speeds);
}

struct FieldPlace {
  Section& section;
  const FieldDescriptor* field;
  const Reflection& reflection;

  bool is_enum() const { return field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM; }
};

FieldPlace FieldAt(proto::Job& message, std::string_view path) {
  Section& section = SectionOf(message, path);
  const std::string name(path.substr(path.rfind('.') + 1));
  const FieldDescriptor* const field = section.GetDescriptor()->FindFieldByName(name);
  SHOAL_CHECK(field != nullptr);
  return {section, field, *section.GetReflection()};
}

template <typename T>
void Put(const FieldPlace& at, const T& value) {
  const Reflection& to = at.reflection;
  if constexpr (std::is_enum_v<T>) {
    to.SetEnumValue(&at.section, at.field, static_cast<int>(value));
  } else if constexpr (std::is_same_v<T, int64_t>) {
    at.is_enum() ? to.SetEnumValue(&at.section, at.field, static_cast<int>(value))
                 : to.SetInt64(&at.section, at.field, value);
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    to.SetUInt64(&at.section, at.field, value);
  } else if constexpr (std::is_same_v<T, double>) {
    to.SetDouble(&at.section, at.field, value);
  } else if constexpr (std::is_same_v<T, bool>) {
    to.SetBool(&at.section, at.field, value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    to.SetString(&at.section, at.field, value);
  } else {
    auto items = to.GetMutableRepeatedFieldRef<typename T::value_type>(&at.section, at.field);
    items.Clear();
    for (const auto& item : value) {
      items.Add(item);
    }
  }
}

template <typename T>
void Take(const FieldPlace& at, T& value) {
  const Reflection& from = at.reflection;
  if constexpr (std::is_enum_v<T>) {
    value = static_cast<T>(from.GetEnumValue(at.section, at.field));
  } else if constexpr (std::is_same_v<T, int64_t>) {
    value = at.is_enum() ? from.GetEnumValue(at.section, at.field)
                         : from.GetInt64(at.section, at.field);
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    value = from.GetUInt64(at.section, at.field);
  } else if constexpr (std::is_same_v<T, double>) {
    value = from.GetDouble(at.section, at.field);
  } else if constexpr (std::is_same_v<T, bool>) {
    value = from.GetBool(at.section, at.field);
  } else if constexpr (std::is_same_v<T, std::string>) {
    value = from.GetString(at.section, at.field);
  } else if (from.FieldSize(at.section, at.field) > 0) {  // otherwise keep the default
    const auto items = from.GetRepeatedFieldRef<typename T::value_type>(at.section, at.field);
    value.assign(items.begin(), items.end());
  }
}

// Says what is recomputed and offloaded where a job with so many stages says it, and `auto` at the
// other place.
void PutRecompute(const PipelineOptions& pipeline, proto::Job& message) {
  proto::TrainOptions& train = *message.mutable_train();
  proto::PipelineOptions& stages = *message.mutable_cluster()->mutable_pipeline();
  const auto put = [](auto& section, const std::optional<Recompute>& recompute,
                      const OffloadedChunks& offload) {
    section.set_recompute(recompute.has_value() ? static_cast<proto::PipelineOptions::Recompute>(
                                                      static_cast<int>(*recompute) + 1)
                                                : proto::PipelineOptions::RECOMPUTE_AUTO);
    section.set_offload(offload.value);
  };
  put(train, std::nullopt, {});
  put(stages, std::nullopt, {});
  pipeline.stages == 1 ? put(train, pipeline.recompute, pipeline.offload)
                       : put(stages, pipeline.recompute, pipeline.offload);
}

void TakeRecompute(const proto::Job& message, PipelineOptions& pipeline) {
  const auto take = [&](const auto& section) {
    if (section.recompute() != proto::PipelineOptions::RECOMPUTE_AUTO) {
      pipeline.recompute = static_cast<Recompute>(section.recompute() - 1);
    }
    pipeline.offload.value = section.offload();
  };
  pipeline.stages == 1 ? take(message.train()) : take(message.cluster().pipeline());
}

}  // namespace

proto::Job ToMessage(const Job& job) {
  proto::Job message;
  VisitFields(
      job, [&](std::string_view path, const auto& value) { Put(FieldAt(message, path), value); });
  message.mutable_data()->mutable_fields()->insert(job.data.fields.begin(), job.data.fields.end());
  message.mutable_data()->mutable_template_arguments()->insert(job.data.template_arguments.begin(),
                                                               job.data.template_arguments.end());
  if (!job.data.train.empty()) {
    message.mutable_data()->set_train(job.data.train);
  }
  if (!job.data.date.empty()) {
    message.mutable_data()->set_date(job.data.date);
  }
  if (!job.data.validation.path.empty()) {
    message.mutable_data()->mutable_validation()->set_path(job.data.validation.path);
  }
  for (const DataSource& source : job.data.mixture) {
    proto::DataSource& to = *message.mutable_data()->add_mixture();
    to.set_path(source.path);
    if (source.weight.has_value()) {
      to.set_weight(*source.weight);
    }
  }
  if (!job.lora.from.empty()) {
    message.mutable_lora()->set_from(job.lora.from);
    message.mutable_lora()->clear_rank();  // that adapter says it, and what follows
    message.mutable_lora()->clear_alpha();
    message.mutable_lora()->clear_rslora();
    message.mutable_lora()->clear_targets();
  }
  for (const LoraPattern& pattern : job.lora.patterns) {
    proto::LoraPattern& to = *message.mutable_lora()->add_patterns();
    to.set_match(pattern.match);
    if (pattern.rank.has_value()) {
      to.set_rank(*pattern.rank);
    }
    if (pattern.alpha.has_value()) {
      to.set_alpha(*pattern.alpha);
    }
  }
  for (const ParameterGroup& group : job.train.groups) {
    proto::ParameterGroup& to = *message.mutable_train()->add_groups();
    to.set_match(group.match);
    to.set_learning_rate_scale(group.learning_rate_scale);
    if (group.weight_decay.has_value()) {
      to.set_weight_decay(*group.weight_decay);
    }
    to.set_freeze(group.freeze);
  }
  message.mutable_service()->set_wire_type(
      job.service.wire_type_auto              ? proto::ServiceOptions::WIRE_AUTO
      : job.service.wire_type == DType::kBF16 ? proto::ServiceOptions::WIRE_BF16
                                              : proto::ServiceOptions::WIRE_FP32);
  proto::ClusterOptions& cluster = *message.mutable_cluster();
  if (job.cluster.local) {
    cluster.mutable_local()->set_servers(job.cluster.servers);
    cluster.mutable_local()->set_workers(job.cluster.workers);
  } else {
    cluster.set_servers(job.cluster.servers);
    cluster.set_workers(job.cluster.workers);
  }
  if (!job.cluster.coordinator.empty()) {
    cluster.set_coordinator(job.cluster.coordinator);
  }
  if (!job.cluster.token_file.empty()) {
    cluster.set_token_file(job.cluster.token_file);
  }
  PutRecompute(job.cluster.pipeline, message);
  if (!job.log.command.empty()) {
    message.mutable_log()->set_command(job.log.command);
  }
  if (job.emulate.enabled()) {
    message.mutable_emulate()->set_shape(job.emulate.shape);
  }
  return message;
}

Job JobOf(const proto::Job& given) {
  proto::Job message = given;
  Job job;
  VisitFields(job,
              [&](std::string_view path, auto& value) { Take(FieldAt(message, path), value); });
  job.data.fields = {message.data().fields().begin(), message.data().fields().end()};
  job.data.template_arguments = {message.data().template_arguments().begin(),
                                 message.data().template_arguments().end()};
  job.data.train = message.data().train();
  job.data.date = message.data().date();
  job.lora.from = message.lora().from();
  for (const proto::LoraPattern& pattern : message.lora().patterns()) {
    job.lora.patterns.push_back(
        {.match = pattern.match(),
         .rank = pattern.has_rank() ? std::optional(pattern.rank()) : std::nullopt,
         .alpha = pattern.has_alpha() ? std::optional(pattern.alpha()) : std::nullopt});
  }
  job.data.validation.path = message.data().validation().path();
  for (const proto::DataSource& source : message.data().mixture()) {
    job.data.mixture.push_back(
        {.path = source.path(),
         .weight = source.has_weight() ? std::optional(source.weight()) : std::nullopt});
  }
  for (const proto::ParameterGroup& group : message.train().groups()) {
    job.train.groups.push_back({.match = group.match(),
                                .learning_rate_scale = group.learning_rate_scale(),
                                .weight_decay = group.has_weight_decay()
                                                    ? std::optional(group.weight_decay())
                                                    : std::nullopt,
                                .freeze = group.freeze()});
  }
  const auto wire_type = message.service().wire_type();
  job.service.wire_type_auto = wire_type == proto::ServiceOptions::WIRE_AUTO;
  job.service.wire_type =
      wire_type == proto::ServiceOptions::WIRE_BF16 ? DType::kBF16 : DType::kF32;
  job.cluster.coordinator = message.cluster().coordinator();
  job.cluster.token_file = message.cluster().token_file();
  TakeRecompute(message, job.cluster.pipeline);
  job.emulate.shape = message.emulate().shape();
  job.log.command = message.log().command();
  return job;
}

}  // namespace shoal::plan
