"""SimNetClassifier beside a support vector machine: few learned templates instead of many support vectors.

Classifies scikit-learn's digits, and writes the network out as the kernel machine that it is.

    python examples/kernel_machine.py
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from simnets import SimNetClassifier

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X, y, random_state=0, stratify=y)

svm = make_pipeline(StandardScaler(), SVC()).fit(X, y)
print(f"SVM:    {svm.score(X_test, y_test):.1%}, {len(svm[-1].support_)} support vectors")

simnet = SimNetClassifier(n_templates=30, scaling="common", max_iter=30, random_state=0).fit(X, y)
print(f"SimNet: {simnet.score(X_test, y_test):.1%}, {len(simnet.templates_)} templates, p = {simnet.p_:.2f}")

# The network written as a kernel machine: positive coefficients α, a kernel for each template.
machine = simnet.to_kernel_machine()
assert np.allclose(machine.decision_function(X_test), simnet.decision_function(X_test))
speaks_for = simnet.classes_[machine.log_coefficients.argmax(0)]
print("what each template stands for:", speaks_for.tolist())
