"""Faulty and healthy training runs with a known answer: what `benchmarks/health_score.py` scores training health on."""
