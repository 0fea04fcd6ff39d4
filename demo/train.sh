#!/bin/sh
# Train a small German-English model on the Tatoeba sample in demo/, translate ten sentences with it, and show one
# translation step by step. Run by `make train`; removes the output of an earlier run from runs/.
set -e
rm -rf runs/demo-data runs/demo
echo "Preparing 17,000 sentence pairs ..."
lath prepare recipes/demo.toml runs/demo-data
echo "Training a small LAT model: about four minutes on two cores ..."
lath train recipes/demo.toml runs/demo-data runs/demo
echo
echo "Ten unseen sentences, with their reference translations:"
head -n 10 demo/tatoeba.test.de > runs/demo/ten.de
lath translate runs/demo/model runs/demo/ten.de > runs/demo/ten.en
paste -d '\n' runs/demo/ten.de runs/demo/ten.en demo/tatoeba.test.en | head -n 30 |
  awk 'NR % 3 == 1 {print "  de   " $0} NR % 3 == 2 {print "  lath " $0} NR % 3 == 0 {print "  ref  " $0; print ""}'
echo "One of them step by step:"
lath show runs/demo/model "$(head -n 1 runs/demo/ten.de)"
