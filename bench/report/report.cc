#include "bench/report/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_replace.h"
#include "core/base/check.h"
#include "core/base/file.h"
#include "core/base/status.h"

namespace shoal::bench {
namespace {

std::string MarkdownTable(const std::vector<std::vector<std::string>>& rows) {
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    text += fmt::format("| {} |\n", fmt::join(rows[r], " | "));
    if (r == 0) {
      text += "|";
      for (size_t c = 0; c < rows[r].size(); ++c) {
        text += "---|";
      }
      text += "\n";
    }
  }
  return text + "\n";
}

}  // namespace

void Report::Table(const std::vector<std::vector<std::string>>& rows) {
  body_ += MarkdownTable(rows);
}

std::string Report::Reference(const std::string& name, const std::string& what) const {
  return fmt::format("![{}]({}/{}.svg)\n\n", what, charts_, name);
}

void Report::Picture(const std::string& name, const std::string& what, std::string svg) {
  svgs_.emplace_back(name, std::move(svg));
  body_ += Reference(name, what);
}

void Report::Chart(const std::string& name, const std::string& what, chart::Chart chart) {
  named_charts_.push_back({name, Reference(name, what), std::move(chart)});
  body_ += named_charts_.back().reference;
}

void Report::Bar(const std::string& what, const std::string& bar, const std::string& found,
                 bool met) {
  AddBarRow({what, bar, found, met ? "met" : "**missed**"});
  missed_ += met ? 0 : 1;
}

void Report::NotMeasured(const std::string& what, const std::string& bar, const std::string& why) {
  AddBarRow({what, bar, why, "**not measured**"});
}

void Report::AddBarRow(const std::vector<std::string>& row) {
  if (bars_.empty()) {
    bars_.push_back({"what", "bar", "found", ""});
  }
  bars_.push_back(row);
}

std::string Report::Markdown(const std::string& title, const std::string& introduction) const {
  return With(body_, title, introduction);
}

std::string Report::With(const std::string& body, const std::string& title,
                         const std::string& introduction) const {
  std::string text = fmt::format("# {}\n\n{}\n\n", title, introduction);
  if (!bars_.empty()) {
    text += MarkdownTable(bars_);
  }
  text += body;
  while (text.ends_with("\n\n")) {
    text.pop_back();
  }
  return text;
}

absl::Status Report::Write(const std::string& directory, const std::string& name,
                           const std::string& title, const std::string& introduction) const {
  SHOAL_RETURN_IF_ERROR(CreateDirectories(directory + "/" + charts_));
  std::string body = body_;
  std::vector<std::pair<std::string, std::string>> svgs = svgs_;
  absl::Status missing;
  for (const NamedChart& named : named_charts_) {
    absl::StatusOr<std::string> svg = chart::RenderSvg(named.chart);
    if (svg.ok()) {
      svgs.emplace_back(named.name, *std::move(svg));
    } else if (absl::IsNotFound(svg.status())) {
      missing = svg.status();
      body = absl::StrReplaceAll(body, {{named.reference, ""}});
    } else {
      return svg.status();
    }
  }
  if (!missing.ok()) {
    fmt::print(stderr, "{}\n", Message(missing));
  }
  for (const auto& [svg_name, svg] : svgs) {
    SHOAL_RETURN_IF_ERROR(
        WriteFileAtomically(fmt::format("{}/{}/{}.svg", directory, charts_, svg_name), svg));
  }
  return WriteFileAtomically(fmt::format("{}/{}.md", directory, name),
                             With(body, title, introduction));
}

double Median(std::vector<double> values) {
  SHOAL_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::string Ratio(double value) {
  return std::isfinite(value) ? fmt::format("{:.2f}", value) : "-";
}
std::string Percent(double share) {
  return std::isfinite(share) ? fmt::format("{:.1f}%", 100 * share) : "-";
}
std::string Difference(double share) {
  return std::isfinite(share) ? fmt::format("{:+.1f}%", 100 * share) : "-";
}

}  // namespace shoal::bench
