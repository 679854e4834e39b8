"""How fast is a GPT's whole training step?"""

from rootdk.bench import script

if __name__ == "__main__":
    script.main("training")
