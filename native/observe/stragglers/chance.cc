#include "observe/stragglers/chance.h"

#include <algorithm>
#include <cmath>

namespace hvdtune {
namespace {

/// Values of θ · (a typical cost) that the bound is minimised over: 24, from 0.01 to 1000.
constexpr int kTilts = 24;
constexpr double kSmallest = 1e-2;
constexpr double kLargest = 1e3;
/// From here on exp(x) is so large that adding 1 makes no difference.
constexpr double kLarge = 40;

/// log(1 + (exp(x) − 1) / n)
double log_of_mean(double x, double n) {
  return x < kLarge ? std::log1p(std::expm1(x) / n) : x - std::log(n);
}

}  // namespace

double caused_by_chance(const std::vector<Charge>& steps, int who, std::size_t parties) {
  std::vector<double> costs;
  double caused = 0;
  double total = 0;
  for (const Charge& step : steps) {
    if (step.cost <= 0) continue;
    costs.push_back(static_cast<double>(step.cost));
    total += costs.back();
    if (step.who == who) caused += costs.back();
  }
  const auto n = static_cast<double>(parties);
  if (costs.empty() || parties < 2 || caused * n <= total) return 1;
  const auto middle = costs.begin() + static_cast<std::ptrdiff_t>(costs.size() / 2);
  std::nth_element(costs.begin(), middle, costs.end());
  const double typical = *middle;
  double least = 0;
  for (int i = 0; i < kTilts; ++i) {
    const double tilt = kSmallest * std::pow(kLargest / kSmallest, i / (kTilts - 1.0)) / typical;
    double exponent = -tilt * caused;
    for (const double cost : costs) exponent += log_of_mean(tilt * cost, n);
    least = std::min(least, exponent);
  }
  return std::min(1.0, n * std::exp(least));
}

}  // namespace hvdtune
