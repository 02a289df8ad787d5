#include "core/plan/pipeline/svg.h"

#include <algorithm>
#include <cmath>

#include "fmt/format.h"

namespace shoal::plan {
namespace {

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

}  // namespace

Svg::Svg(double width, double height, std::string_view title) {
  text_ = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:g}\" height=\"{1:g}\" viewBox=\"0 0 "
      "{0:g} {1:g}\" font-family=\"system-ui, 'DejaVu Sans', Helvetica, sans-serif\" "
      "role=\"img\">\n<title>{2}</title>\n",
      width, height, Escaped(title));
  Rectangle({0, 0}, width, height, "#ffffff");
}

void Svg::Rectangle(Point corner, double width, double height, std::string_view fill,
                    std::string_view hint) {
  text_ +=
      fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"",
                  corner.x, corner.y, width, height, fill);
  text_ += hint.empty() ? "/>\n" : fmt::format("><title>{}</title></rect>\n", Escaped(hint));
}

void Svg::Line(Point from, Point to, std::string_view colour, double width) {
  text_ += fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
      "stroke-width=\"{:g}\"/>\n",
      from.x, from.y, to.x, to.y, colour, width);
}

void Svg::Text(Point place, std::string_view text, const TextStyle& style) {
  std::string turn;
  if (style.degrees != 0) {
    turn =
        fmt::format(" transform=\"rotate({:g} {:.1f} {:.1f})\"", style.degrees, place.x, place.y);
  }
  text_ += fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{:g}\" text-anchor=\"{}\" fill=\"{}\"{}{}>{}"
      "</text>\n",
      place.x, place.y, style.size, style.anchor, style.colour,
      style.bold ? " font-weight=\"600\"" : "", turn, Escaped(text));
}

std::vector<double> TicksFor(double low, double high) {
  const double span = std::max(high - low, 1e-9 * std::max({std::abs(low), std::abs(high), 1.0}));
  const double magnitude = std::pow(10, std::floor(std::log10(span / 4)));
  double step = 10 * magnitude;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (span / (factor * magnitude) <= 6) {
      step = factor * magnitude;
    }
  }
  const double first = std::floor(low / step + 1e-9);
  const double last = std::max(first + 1, std::ceil(high / step - 1e-9));
  std::vector<double> ticks;
  for (double i = first; i <= last; ++i) {
    ticks.push_back(i * step);
  }
  return ticks;
}

}  // namespace shoal::plan
