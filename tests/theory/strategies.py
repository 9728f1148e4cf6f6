"""Random spectra, methods and estimators for property tests."""

import numpy as np
from hypothesis import strategies as st

from zoedge.theory import GD, GDM, ZOGD, ZOGDM, Adam, Estimator, ZOAdam

betas = st.floats(0, 0.97)
eigenvalues = st.lists(st.floats(1e-2, 1e2), min_size=1, max_size=10).map(np.array)
zeroth_order = st.one_of(st.just(ZOGD()), betas.map(ZOGDM), betas.map(ZOAdam))
first_order = st.one_of(st.just(GD()), betas.map(GDM), betas.map(Adam))
isotropic = st.builds(
    Estimator, directions=st.sampled_from(["gaussian", "sphere"]), queries=st.sampled_from([1, 2, 4, 16])
)
