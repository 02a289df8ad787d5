// A dated report: Markdown with charts beside it, and the bars that were met or missed.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/chart/gnuplot.h"

namespace shoal::bench {

class Report {
 public:
  // Pictures and charts are referred to as `charts`/NAME.svg.
  explicit Report(std::string charts) : charts_(std::move(charts)) {}

  void Heading(const std::string& text) { body_ += "\n## " + text + "\n\n"; }
  void Paragraph(const std::string& text) { body_ += text + "\n\n"; }
  // The first row is the heading.
  void Table(const std::vector<std::vector<std::string>>& rows);
  void Picture(const std::string& name, const std::string& what, std::string svg);
  void Chart(const std::string& name, const std::string& what, chart::Chart chart);
  // `met` decides; both are said at the top.
  void Bar(const std::string& what, const std::string& bar, const std::string& found, bool met);

  // A bar that there is no figure for: `why`. It counts as neither.
  void NotMeasured(const std::string& what, const std::string& bar, const std::string& why);

  int missed() const { return missed_; }
  // `title` and `introduction`, the bars, then everything in order.
  std::string Markdown(const std::string& title, const std::string& introduction) const;
  // DIRECTORY/NAME.md, the pictures and the charts. Where there is no gnuplot the report has no
  // charts, and a line on stderr says so.
  absl::Status Write(const std::string& directory, const std::string& name,
                     const std::string& title, const std::string& introduction) const;

 private:
  struct NamedChart {
    std::string name;
    std::string reference;
    chart::Chart chart;
  };
  std::string Reference(const std::string& name, const std::string& what) const;
  std::string With(const std::string& body, const std::string& title,
                   const std::string& introduction) const;
  void AddBarRow(const std::vector<std::string>& row);

  const std::string charts_;
  std::string body_;
  std::vector<std::vector<std::string>> bars_;
  std::vector<std::pair<std::string, std::string>> svgs_;  // name, text
  std::vector<NamedChart> named_charts_;
  int missed_ = 0;
};

double Median(std::vector<double> values);  // of at least one

// "1.30", "-" for a NaN; "12.3%"; "+1.2%".
std::string Ratio(double value);
std::string Percent(double share);
std::string Difference(double share);

}  // namespace shoal::bench
