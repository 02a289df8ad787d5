#include "cli/plan/job_report.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "cli/terminal/terminal.h"
#include "core/base/bytes.h"
#include "core/base/status.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace shoal::cli {
namespace {

std::string_view Name(plan::Residency residency) {
  return residency == plan::Residency::kStep ? "step" : "layer";
}
std::string_view Name(plan::PushPolicy push) {
  return push == plan::PushPolicy::kStep ? "step" : "microbatch";
}

// Right-aligns all columns but the first.
std::vector<Table::Column> Columns(const std::string& first,
                                   std::initializer_list<const char*> others) {
  std::vector<Table::Column> columns = {{first}};
  for (const char* other : others) {
    columns.push_back({other, Table::Align::kRight});
  }
  return columns;
}

void AppendBytes(std::vector<std::string>& row, std::initializer_list<int64_t> bytes) {
  for (const int64_t cell : bytes) {
    row.push_back(FormatBytes(cell));
  }
}

std::vector<std::string> BytesRow(std::string first, std::initializer_list<int64_t> bytes) {
  std::vector<std::string> row = {std::move(first)};
  AppendBytes(row, bytes);
  return row;
}

int64_t PartitionsOfUnit(const JobReport& planned, int unit) {
  return std::count_if(
      planned.partitions.begin(), planned.partitions.end(),
      [unit](const plan::PartitionSpec& partition) { return partition.unit == unit; });
}

// Units that follow each other and are alike have one row.
void PrintUnits(const JobReport& planned, Streams& streams) {
  Table table(Columns("unit", {"parameters", "partitions", "largest partition"}));
  std::vector<std::string> row;
  std::string first;
  std::string last;
  const auto add = [&] {
    if (!row.empty()) {
      row.front() = first == last ? first : fmt::format("{} to {}, each", first, last);
      table.Add(row);
    }
  };
  for (const plan::UnitSpec& unit : planned.units) {
    int64_t parameters = 0;
    for (const plan::TensorSpec& tensor : unit.tensors) {
      parameters += tensor.count();
    }
    int64_t largest = 0;
    for (const plan::PartitionSpec& partition : planned.partitions) {
      largest = partition.unit == unit.index ? std::max(largest, partition.count) : largest;
    }
    const std::vector<std::string> next = {"", WithThousands(parameters),
                                           std::to_string(PartitionsOfUnit(planned, unit.index)),
                                           WithThousands(largest)};
    if (row.empty() || !std::equal(next.begin() + 1, next.end(), row.begin() + 1)) {
      add();
      row = next;
      first = unit.name;
    }
    last = unit.name;
  }
  add();
  table.Add({"all", WithThousands(plan::ParameterCount(planned.spec)),
             std::to_string(planned.partitions.size()), ""});
  streams.out << table.Render(streams.out_terminal) << "\n";
}

// Of a local job: whether this machine has the memory and the cores.
void PrintFit(const JobReport& planned, Streams& streams) {
  if (!planned.fit.has_value()) {
    return;
  }
  const MachineFit& fit = *planned.fit;
  streams.out << (fit.memory.ok()
                      ? fmt::format("it fits this machine: {} of {} available\n",
                                    FormatBytes(planned.memory.total()),
                                    FormatBytes(fit.available_bytes))
                      : fmt::format("it does not fit this machine: {}\n", Message(fit.memory)));
  const int64_t workers = planned.job.cluster.workers;
  if (planned.job.train.device == plan::DeviceKind::kCpu && workers > fit.cores) {
    streams.out << fmt::format(
        "{} workers share {} cores: they take turns, and steps take longer than planned\n", workers,
        fit.cores);
  }
  streams.out << "\n";
}

// Prints nothing if workers compute on the CPU.
void PrintGpuMemory(const JobReport& planned, Streams& streams) {
  if (planned.job.train.device != plan::DeviceKind::kCuda) {
    return;
  }
  Table gpus(Columns(planned.pipeline.has_value() ? "GPU of stage" : "GPU of each worker",
                     {"weights", "gradients", "activations", "logits", "workspaces", "total"}));
  for (size_t stage = 0; stage < planned.memory.stages.size(); ++stage) {
    const plan::GpuMemory& gpu = planned.memory.stages[stage].gpu;
    gpus.Add(BytesRow(
        planned.pipeline.has_value() ? std::to_string(stage) : "",
        {gpu.weights, gpu.gradients, gpu.activations, gpu.logits, gpu.workspace, gpu.total()}));
  }
  streams.out << "\n"
              << gpus.Render(streams.out_terminal)
              << "(the table above is of the host: what is on its way there is pinned)\n";
}

// Prints nothing without service.memory cuda.
void PrintServerGpuMemory(const JobReport& planned, Streams& streams) {
  if (planned.job.service.memory != plan::PartitionMemory::kCuda) {
    return;
  }
  Table gpus(Columns("GPU of server", {"weights", "master", "moments", "gradients", "workspace",
                                       "push slots", "promotion", "total"}));
  for (size_t i = 0; i < planned.memory.servers.size(); ++i) {
    const plan::ServerGpuMemory& gpu = planned.memory.servers[i].gpu;
    gpus.Add(BytesRow(std::to_string(i), {gpu.weights, gpu.master, gpu.moments, gpu.gradients,
                                          gpu.workspace, gpu.slots, gpu.promotion, gpu.total()}));
  }
  streams.out << gpus.Render(streams.out_terminal);
  const plan::ReachedInGpu reached = plan::PlanReachedInGpu(planned.job);
  if (reached.slots && !reached.by_all) {
    streams.out
        << "(a worker's push slots are in the GPU of servers on its host, and on the host of "
           "others: both tables count all workers')\n";
  }
  streams.out << "\n";
}

void PrintMemory(const JobReport& planned, Streams& streams) {
  const bool replicas = planned.job.service.replicas > 1;
  Table servers(
      replicas
          ? Columns("server", {"partitions", "weights", "master", "moments", "gradients", "backups",
                               "promotion", "push slots", "copies", "process", "total"})
          : Columns("server", {"partitions", "weights", "master", "moments", "gradients",
                               "push slots", "copies", "process", "total"}));
  for (size_t i = 0; i < planned.memory.servers.size(); ++i) {
    const plan::ServerMemory& m = planned.memory.servers[i];
    std::vector<std::string> row = {
        std::to_string(i),
        std::to_string(plan::PartitionsOf(planned.shards, static_cast<int>(i)).size())};
    AppendBytes(row, {m.weights, m.master, m.moments, m.gradients});
    if (replicas) {
      AppendBytes(row, {m.backups, m.promotion});
    }
    AppendBytes(row, {m.slots, m.copies, m.process, m.total()});
    servers.Add(row);
  }
  streams.out << servers.Render(streams.out_terminal) << "\n";
  PrintServerGpuMemory(planned, streams);
  const bool pipeline = planned.pipeline.has_value();
  Table worker(pipeline ? Columns("stage", {"weights", "gradients", "activations", "offloaded",
                                            "messages", "wire and pushes", "process", "total"})
                        : Columns("each worker", {"weights", "gradients", "activations", "logits",
                                                  "wire and pushes", "process", "total"}));
  for (size_t stage = 0; stage < planned.memory.stages.size(); ++stage) {
    const plan::WorkerMemory& w = planned.memory.stages[stage];
    worker.Add(pipeline ? BytesRow(std::to_string(stage),
                                   {w.weights, w.gradients, w.activations, w.offloaded, w.messages,
                                    w.wire + w.pushes, w.process, w.total()})
                        : BytesRow(std::to_string(planned.memory.groups) + " of them",
                                   {w.weights, w.gradients, w.activations, w.logits,
                                    w.wire + w.pushes, w.process, w.total()}));
  }
  streams.out << worker.Render(streams.out_terminal);
  PrintGpuMemory(planned, streams);
  streams.out << fmt::format(
      "all processes: {}; weights are kept for the {}, gradients pushed once per {}\n\n",
      FormatBytes(planned.memory.total()),
      planned.memory.policy.residency == plan::Residency::kStep ? "step" : "use of a layer",
      Name(planned.memory.policy.push));
}

void PrintSteps(const JobReport& planned, Streams& streams) {
  const plan::StepTraffic& traffic = planned.traffic;
  streams.out << fmt::format(
      "a step has {} samples, and moves {} of weights in {} gets and {} of gradients in {} "
      "pushes\n\n",
      WithThousands(planned.job.train.minibatch_samples), FormatBytes(traffic.get_bytes),
      WithThousands(traffic.fetches), FormatBytes(traffic.push_bytes),
      WithThousands(traffic.pushes));
  Table table({{"step", Table::Align::kRight},
               {"tokens", Table::Align::kRight},
               {"targets", Table::Align::kRight},
               {planned.job.cluster.pipeline.stages > 1 ? "microbatches by group"
                                                        : "microbatches by worker"},
               {"busiest over mean cost", Table::Align::kRight}});
  for (size_t i = 0; i < planned.steps.size(); ++i) {
    const plan::StepPlan& step = planned.steps[i];
    std::string counts;
    double most = 0;
    double sum = 0;
    for (const auto& worker : step.workers) {
      double cost = 0;
      for (const plan::Microbatch& microbatch : worker) {
        cost += microbatch.cost;
      }
      counts += fmt::format("{}{}", counts.empty() ? "" : " ", worker.size());
      most = std::max(most, cost);
      sum += cost;
    }
    const double mean = sum / static_cast<double>(std::max<size_t>(1, step.workers.size()));
    table.Add({std::to_string(i + 1), WithThousands(step.tokens), WithThousands(step.targets),
               counts, mean > 0 ? fmt::format("{:.2f}", most / mean) : "-"});
  }
  streams.out << table.Render(streams.out_terminal);
}

nlohmann::json ServerJson(const plan::ServerMemory& m, size_t index, size_t partitions) {
  return {{"event", "server"},
          {"server", index},
          {"partitions", partitions},
          {"weights_bytes", m.weights},
          {"master_bytes", m.master},
          {"moments_bytes", m.moments},
          {"gradients_bytes", m.gradients},
          {"backups_bytes", m.backups},
          {"promotion_bytes", m.promotion},
          {"slots_bytes", m.slots},
          {"copies_bytes", m.copies},
          {"process_bytes", m.process},
          {"total_bytes", m.total()},
          {"gpu",
           {{"weights_bytes", m.gpu.weights},
            {"master_bytes", m.gpu.master},
            {"moments_bytes", m.gpu.moments},
            {"gradients_bytes", m.gpu.gradients},
            {"workspace_bytes", m.gpu.workspace},
            {"slots_bytes", m.gpu.slots},
            {"promotion_bytes", m.gpu.promotion},
            {"total_bytes", m.gpu.total()}}}};
}

nlohmann::json WorkerJson(const JobReport& planned, size_t stage) {
  const plan::WorkerMemory& w = planned.memory.stages[stage];
  return {{"event", "worker"},
          {"stage", stage},
          {"workers", planned.memory.groups},
          {"residency", Name(planned.memory.policy.residency)},
          {"push", Name(planned.memory.policy.push)},
          {"weights_bytes", w.weights},
          {"wire_bytes", w.wire},
          {"gradients_bytes", w.gradients},
          {"activations_bytes", w.activations},
          {"logits_bytes", w.logits},
          {"offloaded_bytes", w.offloaded},
          {"messages_bytes", w.messages},
          {"pushes_bytes", w.pushes},
          {"process_bytes", w.process},
          {"total_bytes", w.total()},
          {"gpu",
           {{"weights_bytes", w.gpu.weights},
            {"gradients_bytes", w.gpu.gradients},
            {"activations_bytes", w.gpu.activations},
            {"logits_bytes", w.gpu.logits},
            {"workspace_bytes", w.gpu.workspace},
            {"total_bytes", w.gpu.total()}}}};
}

}  // namespace

void PrintPlan(const JobReport& planned, Streams& streams) {
  PrintUnits(planned, streams);
  PrintMemory(planned, streams);
  PrintFit(planned, streams);
  PrintSteps(planned, streams);
  streams.out << "\n";
  if (!planned.recompute.empty()) {
    streams.out << planned.recompute << "\n\n";
  }
  if (planned.pipeline.has_value()) {
    PrintPipeline(*planned.pipeline, streams);
  }
  PrintTitle(planned.simulation, kVerdictSteps, streams);
  PrintVerdict(planned.verdict, streams);
}

void PrintJsonPlan(const JobReport& planned, Streams& streams) {
  for (const plan::UnitSpec& unit : planned.units) {
    PrintJson(streams.out, {{"event", "unit"},
                            {"unit", unit.name},
                            {"elements", unit.count},
                            {"partitions", PartitionsOfUnit(planned, unit.index)}});
  }
  for (size_t i = 0; i < planned.memory.servers.size(); ++i) {
    PrintJson(streams.out,
              ServerJson(planned.memory.servers[i], i,
                         plan::PartitionsOf(planned.shards, static_cast<int>(i)).size()));
  }
  for (size_t stage = 0; stage < planned.memory.stages.size(); ++stage) {
    PrintJson(streams.out, WorkerJson(planned, stage));
  }
  for (size_t i = 0; i < planned.steps.size(); ++i) {
    nlohmann::json counts = nlohmann::json::array();
    for (const auto& worker : planned.steps[i].workers) {
      counts.push_back(worker.size());
    }
    PrintJson(streams.out, {{"event", "step"},
                            {"step", i + 1},
                            {"tokens", planned.steps[i].tokens},
                            {"target_tokens", planned.steps[i].targets},
                            {"microbatches", counts}});
  }
  if (planned.fit.has_value()) {
    PrintJson(streams.out, {{"event", "machine"},
                            {"fits", planned.fit->memory.ok()},
                            {"available_bytes", planned.fit->available_bytes},
                            {"cores", planned.fit->cores}});
  }
  const plan::StepTraffic& traffic = planned.traffic;
  PrintJson(streams.out, {{"event", "plan"},
                          {"parameters", plan::ParameterCount(planned.spec)},
                          {"partitions", planned.partitions.size()},
                          {"total_bytes", planned.memory.total()},
                          {"get_bytes_per_step", traffic.get_bytes},
                          {"push_bytes_per_step", traffic.push_bytes},
                          {"microbatches_per_worker", planned.microbatches_per_worker}});
  if (planned.pipeline.has_value()) {
    PrintJsonPipeline(*planned.pipeline, streams);
  }
  PrintJson(streams.out, VerdictJson(planned.verdict));
}

}  // namespace shoal::cli
