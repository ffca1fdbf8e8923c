//! Readings become numbers: rates, histograms, workloads, the metric tree.
