// SPDX-License-Identifier: Apache-2.0
#include "models/loop/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/util/svg.h"

namespace xylem {
namespace {

constexpr double kWidth = 800, kHeight = 480, kLeft = 70, kRight = 20, kTop = 40, kBottom = 55;

std::string number(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", std::abs(v) < 1e-12 ? 0.0 : v);
  return text;
}

struct Axis {
  double low, high, step, from, to;  // values and the pixels they map to
  double operator()(double v) const { return from + (v - low) / (high - low) * (to - from); }
};

// Widens a range to multiples of 1, 2 or 5 times a power of ten, with about `ticks` of them.
Axis make_axis(double low, double high, int ticks, double from, double to) {
  if (!(low <= high)) low = 0, high = 1;
  if (low == high) low -= 0.5, high += 0.5;
  double rough = (high - low) / ticks, power = std::pow(10, std::floor(std::log10(rough)));
  double step = power * 10;
  for (double m : {1.0, 2.0, 5.0})
    if (m * power >= rough) {
      step = m * power;
      break;
    }
  return {std::floor(low / step) * step, std::ceil(high / step) * step, step, from, to};
}

constexpr const char* kMiddle = "text-anchor=\"middle\"";
constexpr const char* kEnd = "text-anchor=\"end\"";

void draw_curve(SvgCanvas& c, const Series& s, const Axis& x, const Axis& y) {
  std::string path;
  bool pen_down = false;
  for (auto [px, py] : s.points) {
    if (!std::isfinite(py)) {
      pen_down = false;
      continue;
    }
    path.append(pen_down ? "L" : "M").append(svg_number(x(px))).append(" ").append(svg_number(y(py)));
    pen_down = true;
  }
  c.path(path, s.colour, 1.5);
  for (auto [px, py] : s.points)
    if (s.markers && std::isfinite(py)) c.circle(x(px), y(py), 3, s.colour);
}

}  // namespace

std::string plot_svg(const std::string& title, const std::string& x_label, const std::string& y_label,
                     const std::vector<Series>& series) {
  double x_low = INFINITY, x_high = -INFINITY, y_low = INFINITY, y_high = -INFINITY;
  for (const Series& s : series)
    for (auto [px, py] : s.points)
      if (std::isfinite(py)) {
        x_low = std::min(x_low, px), x_high = std::max(x_high, px);
        y_low = std::min(y_low, py), y_high = std::max(y_high, py);
      }
  Axis x = make_axis(x_low, x_high, 8, kLeft, kWidth - kRight),
       y = make_axis(y_low, y_high, 6, kHeight - kBottom, kTop);

  SvgCanvas c;
  c.text(kWidth / 2, 24, title, std::string(kMiddle) + " font-size=\"16\"");
  for (double v = x.low; v <= x.high + x.step / 2; v += x.step) {
    c.line(x(v), y.to, x(v), y.from, "#e0e0e0", 1);
    c.text(x(v), y.from + 18, number(v), kMiddle);
  }
  for (double v = y.low; v <= y.high + y.step / 2; v += y.step) {
    c.line(x.from, y(v), x.to, y(v), "#e0e0e0", 1);
    c.text(x.from - 8, y(v) + 4, number(v), kEnd);
  }
  c.line(x.from, y.from, x.to, y.from, "black", 1);
  c.line(x.from, y.from, x.from, y.to, "black", 1);
  c.text((x.from + x.to) / 2, kHeight - 14, x_label, kMiddle);
  const double middle = (y.from + y.to) / 2;
  c.text(18, middle, y_label, std::string(kMiddle) + " transform=\"rotate(-90 18 " + svg_number(middle) + ")\"");
  double row = kTop + 18;
  for (const Series& s : series) {
    if (s.points.empty()) continue;
    draw_curve(c, s, x, y);
    c.line(x.to - 150, row - 4, x.to - 125, row - 4, s.colour, 3);
    c.text(x.to - 118, row, s.name);
    row += 20;
  }
  return c.document(kWidth, kHeight);
}

}  // namespace xylem
